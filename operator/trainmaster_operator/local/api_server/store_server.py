"""The memory store behind a unix socket: the API server of a local run.

POST /v1/<verb> with the arguments as a JSON object; 200 with the result, or the code of an error with {"reason",
"message"}. The answer to a watch is a stream of JSON lines, each with {"type", "object"}; the last one may be an error.
Every user who can enter the socket's directory can do everything, so the directory must be accessible to its owner
only.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from trainmaster_operator.cluster.objects import bookmark
from trainmaster_operator.cluster.port import BOOKMARK, ApiError, Invalid, Unavailable, WatchEvent
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.local.api_server.store_faults import Trouble
from trainmaster_operator.local.api_server.watch_history import Cursor

VERBS = ("list", "get", "create", "update", "update_status", "patch", "apply", "delete", "resize", "evict", "bind")

BODY_LIMIT = 16 * 1024 * 1024
KEEP_ALIVE_S = 3600.0
BOOKMARK_EVERY_S = 60.0
"""As on a real API server: a watch that is silent for minutes counts as dead in health checks and alerts."""
BACKLOG = 1024  # Number of connections that may wait to be accepted; beyond it a client is refused at once.

_MALFORMED = (TypeError, ValueError, KeyError, AttributeError)


class StoreServer:
    """Serves `store` until closed. The same event loop may also use the store directly. `trouble`: injected faults
    for the clients of this socket. `bookmark_every_s`: a watch gets a bookmark after so many seconds of silence."""

    def __init__(
        self,
        store: MemoryStore,
        path: Path,
        trouble: Trouble | None = None,
        bookmark_every_s: float = BOOKMARK_EVERY_S,
    ) -> None:
        self.store = store
        self.bookmark_every_s = bookmark_every_s
        self.trouble = trouble or Trouble()
        self.trouble.begins.append(self._break_watches)
        self.path = path
        self._watches: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Start serving. Raise PermissionError if others may enter the directory, OSError if the path cannot be
        bound."""
        mode = stat.S_IMODE(self.path.parent.stat().st_mode)
        if mode & 0o077:
            raise PermissionError(f"{self.path.parent}: mode {mode:04o}; the store's folder must have mode 0700")
        app = web.Application(client_max_size=BODY_LIMIT)
        for verb in VERBS:
            app.router.add_post(f"/v1/{verb}", self._call(verb, getattr(self, f"_{verb}")))
        app.router.add_post("/v1/watch", self._watch)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=1.0
        )
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.path), backlog=BACKLOG).start()
        os.chmod(self.path, 0o600)

    async def close(self) -> None:
        """End all watches and remove the socket."""
        self._break_watches()
        if self._runner:
            await self._runner.cleanup()
        self.path.unlink(missing_ok=True)

    async def _list(self, kind: str, namespace: str | None, labels: dict[str, str | None] | None) -> Any:
        listing = self.store.list(kind, namespace, labels)
        return {"items": listing.items, "resourceVersion": listing.resource_version}

    async def _get(self, kind: str, namespace: str, name: str) -> Any:
        return self.store.find(kind, namespace, name)

    async def _create(self, kind: str, obj: Any) -> Any:
        return self.store.create(kind, obj)

    async def _update(self, kind: str, obj: Any) -> Any:
        return self.store.update(kind, obj)

    async def _update_status(self, kind: str, obj: Any) -> Any:
        return self.store.update_status(kind, obj)

    async def _patch(self, kind: str, namespace: str, name: str, patch: Any, resource_version: str | None) -> Any:
        return self.store.patch(kind, namespace, name, patch, resource_version)

    async def _apply(self, kind: str, obj: Any) -> Any:
        return self.store.apply(kind, obj)

    async def _delete(self, kind: str, namespace: str, name: str, uid: str | None, grace_s: int | None) -> Any:
        self.store.delete(kind, namespace, name, uid, grace_s)

    async def _resize(self, namespace: str, name: str, uid: str, resources: dict[str, Any]) -> Any:
        return self.store.resize(namespace, name, uid, resources)

    async def _evict(self, namespace: str, name: str) -> Any:
        self.store.evict(namespace, name)

    async def _bind(self, namespace: str, name: str, node: str) -> Any:
        return self.store.bind(namespace, name, node)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        try:
            self._refuse()
            asked = json.loads(await request.read())
            cursor = self.store.watch(asked["kind"], asked["resource_version"], asked["namespace"], asked["labels"])
        except ApiError as error:
            return _refusal(error)
        except _MALFORMED as error:
            return _refusal(_malformed(error))
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        response = web.StreamResponse()
        try:
            await response.prepare(request)
            while True:
                try:
                    events = await self._next(cursor)
                except ApiError as error:
                    await response.write(_line(_described(error)))
                    return response
                if events:
                    lines = [_line({"type": event.type, "object": event.object}) for event in events]
                    await response.write(b"".join(lines))
        except ConnectionError:
            return response  # The client has closed the connection.
        finally:
            cursor.close()
            self._watches.discard(task)

    async def _next(self, cursor: Cursor) -> list[WatchEvent]:
        """Return the new events of a watch, or a bookmark if there are none for a while. Raise Gone."""
        try:
            async with asyncio.timeout(self.bookmark_every_s):
                await cursor.ready.wait()
        except TimeoutError:
            history = cursor.history
            return [WatchEvent(BOOKMARK, bookmark(history.kind, str(history.latest())))]
        return cursor.take()

    def _call(self, verb: str, act: Callable[..., Awaitable[Any]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            try:
                self._refuse()
                arguments = json.loads(await request.read())
                result = await act(**arguments)
            except ApiError as error:
                return _refusal(error)
            except _MALFORMED as error:
                return _refusal(_malformed(error))
            await self.trouble.done(verb, arguments)
            return web.Response(body=_dumped(result), content_type="application/json")

        return answer

    def _refuse(self) -> None:
        if self.trouble.refuses:
            raise Unavailable("the API server is away: a fault was asked for")

    def _break_watches(self) -> None:
        for task in list(self._watches):
            task.cancel()


def _malformed(error: Exception) -> Invalid:
    return Invalid(f"malformed request: {type(error).__name__}: {error}")


def _described(error: ApiError) -> dict[str, str]:
    return {"reason": error.reason, "message": str(error)}


def _refusal(error: ApiError) -> web.Response:
    return web.Response(status=error.code, body=_dumped(_described(error)), content_type="application/json")


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _line(value: Any) -> bytes:
    return _dumped(value) + b"\n"
