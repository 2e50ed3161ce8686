"""`Cluster` over the unix socket of a StoreServer, for the operator and the kubelet of a local run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from trainmaster_operator.cluster.line_splitter import LineSplitter
from trainmaster_operator.cluster.port import (
    ERRORS,
    ApiError,
    Labels,
    Listing,
    Object,
    TokenReview,
    Unavailable,
    WatchEvent,
)

CALL_TIMEOUT_S = 10.0
CONNECTIONS = 64  # Each watch holds one; calls beyond this number wait.
IDLE_CONNECTION_S = 1800.0  # Shorter than the server's time, so that no call uses a connection that is being closed.


class SocketCluster:
    """Use it in the event loop in which it was created, and close it. Connections are kept and reused."""

    def __init__(self, path: Path, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.path = path
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(path), limit=CONNECTIONS, keepalive_timeout=IDLE_CONNECTION_S),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def list(self, kind: str, namespace: str | None = None, labels: Labels | None = None) -> Listing:
        answer = await self._call("list", kind=kind, namespace=namespace, labels=_plain(labels))
        return Listing(answer["items"], answer["resourceVersion"])

    async def watch(
        self, kind: str, resource_version: str, namespace: str | None = None, labels: Labels | None = None
    ) -> AsyncIterator[WatchEvent]:
        asked = {"kind": kind, "resource_version": resource_version, "namespace": namespace, "labels": _plain(labels)}
        endless = aiohttp.ClientTimeout(total=None)
        try:
            async with self._session.post("http://store/v1/watch", data=_dumped(asked), timeout=endless) as response:
                if response.status != 200:
                    raise _error(await response.read())
                lines = LineSplitter()
                async for chunk in response.content.iter_any():
                    for line in lines.feed(chunk):
                        event = json.loads(line)
                        if "reason" in event:
                            raise _error(line)
                        yield WatchEvent(event["type"], event["object"])
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{self.path}: {str(error) or type(error).__name__}") from error

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        return await self._object("get", kind=kind, namespace=namespace, name=name)

    async def create(self, kind: str, obj: Object) -> Object:
        return await self._object("create", kind=kind, obj=obj)

    async def update(self, kind: str, obj: Object) -> Object:
        return await self._object("update", kind=kind, obj=obj)

    async def update_status(self, kind: str, obj: Object) -> Object:
        return await self._object("update_status", kind=kind, obj=obj)

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Object, resource_version: str | None = None
    ) -> Object:
        return await self._object(
            "patch", kind=kind, namespace=namespace, name=name, patch=patch, resource_version=resource_version
        )

    async def apply(self, kind: str, obj: Object) -> Object:
        return await self._object("apply", kind=kind, obj=obj)

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str | None = None, grace_s: int | None = None
    ) -> None:
        await self._call("delete", kind=kind, namespace=namespace, name=name, uid=uid, grace_s=grace_s)

    async def resize(self, namespace: str, name: str, uid: str, resources: Mapping[str, Object]) -> Object:
        return await self._object("resize", namespace=namespace, name=name, uid=uid, resources=dict(resources))

    async def evict(self, namespace: str, name: str) -> None:
        await self._call("evict", namespace=namespace, name=name)

    async def events_about(self, namespace: str, uid: str) -> Sequence[Object]:
        return []  # The local kubelet reports everything in the pod's status.

    async def review_token(self, token: str, audience: str) -> TokenReview | None:
        return None  # No tokens are issued in a local run.

    async def bind(self, namespace: str, name: str, node: str) -> Object:
        """Bind a pod to a node, as a scheduler does. This is not part of the port."""
        return await self._object("bind", namespace=namespace, name=name, node=node)

    async def _object(self, verb: str, **arguments: Any) -> Object:
        obj: Object = await self._call(verb, **arguments)
        return obj

    async def _call(self, verb: str, **arguments: Any) -> Any:
        try:
            async with self._session.post(f"http://store/v1/{verb}", data=_dumped(arguments)) as response:
                body = await response.read()
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise Unavailable(f"{self.path}: {str(error) or type(error).__name__}") from error
        if response.status != 200:
            raise _error(body)
        return json.loads(body)


def _plain(labels: Labels | None) -> dict[str, str | None] | None:
    return dict(labels) if labels else None


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _error(body: bytes) -> ApiError:
    try:
        described = json.loads(body)
        return ERRORS.get(described["reason"], ApiError)(described["message"])
    except (ValueError, KeyError, TypeError):
        return Unavailable(f"not an answer of the store: {body[:200]!r}")
