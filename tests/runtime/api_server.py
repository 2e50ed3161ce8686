"""The memory store behind Kubernetes' REST interface on loopback: enough for the adapter and for kopf."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from trainmaster_operator.cluster.port import KINDS, ApiError, Object
from trainmaster_operator.local.api_server.memory_store import MemoryStore

PLURALS = {kind.plural: name for name, kind in KINDS.items()}


class ApiServer:
    """`token_of[token]`: the status of its TokenReview. `scrapers`: users who may get /metrics. `broken`: every
    answer is a 503, which `refused` counts. `spoiled`: watches of this plural end with an ERROR."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.token_of: dict[str, Object] = {}
        self.scrapers: set[str] = set()
        self.broken = False
        self.refused = 0
        self.spoiled = ""
        self.asked: list[tuple[str, str]] = []
        self.url = ""
        self._streams: set[asyncio.Task[Any]] = set()
        self._runner: web.ServerRunner | None = None

    async def start(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._answer, handler_cancellation=True), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def cut(self) -> None:
        """Ends every watch in the middle of the stream."""
        for task in self._streams:
            task.cancel()

    def kubeconfig(self, path: Path) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": "t"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.broken:
            self.refused += 1
            return _json({"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": "away"}, 503)
        if request.method == "GET" and request.path in _DISCOVERY:
            return _json(_DISCOVERY[request.path])
        self.asked.append((request.method, request.path))
        if request.path.endswith("/tokenreviews"):
            token = json.loads(await request.read())["spec"]["token"]
            return _json({"status": self.token_of.get(token, {"authenticated": False})}, 201)
        if request.path.endswith("/subjectaccessreviews"):
            asked = json.loads(await request.read())["spec"]
            allowed = asked["user"] in self.scrapers and asked["nonResourceAttributes"]["path"] == "/metrics"
            return _json({"status": {"allowed": allowed}}, 201)
        try:
            return await self._on_objects(request)
        except ApiError as error:
            body = {"kind": "Status", "code": error.code, "reason": error.reason, "message": str(error)}
            return _json(body, error.code)

    async def _on_objects(self, request: web.BaseRequest) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = parts[1] if parts[0] == "namespaces" else None
        plural, name, *below = [*(parts[2:] if namespace else parts), ""]
        kind, store = PLURALS[plural], self.store
        body = json.loads(await request.read() or "null")
        if request.method == "GET" and not name:
            pairs = [part.partition("=") for part in request.query.get("labelSelector", "").split(",") if part]
            labels = {key: value if equals else None for key, equals, value in pairs}
            if "watch" in request.query:
                return await self._watch(request, kind, namespace, labels)
            listing = store.list(kind, namespace, labels)
            return _json({"metadata": {"resourceVersion": listing.resource_version}, "items": listing.items})
        assert namespace is not None
        if request.method == "GET":
            return _json(store.get(kind, namespace, name))
        if request.method == "POST":
            return _json(store.create(kind, body), 201)
        if request.method == "PUT":
            return _json((store.update_status if below[:1] == ["status"] else store.update)(kind, body))
        if request.method == "PATCH":
            if "apply" in request.headers["Content-Type"]:
                return _json(store.apply(kind, body))
            return _json(store.patch(kind, namespace, name, body))
        store.delete(
            kind, namespace, name, (body.get("preconditions") or {}).get("uid"), body.get("gracePeriodSeconds")
        )
        return _json({"kind": "Status", "status": "Success"})

    async def _watch(
        self, request: web.BaseRequest, kind: str, namespace: str | None, labels: dict[str, str | None]
    ) -> web.StreamResponse:
        cursor = self.store.watch(kind, request.query["resourceVersion"], namespace, labels)
        response = web.StreamResponse()
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            while True:
                if KINDS[kind].plural == self.spoiled:
                    error = {"kind": "Status", "code": 500, "message": "spoiled"}
                    await response.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
                    return response
                await cursor.ready.wait()
                for event in cursor.take():
                    await response.write(json.dumps({"type": event.type, "object": event.object}).encode() + b"\n")
        finally:
            self._streams.discard(task)
            cursor.close()


def _json(value: Any, code: int = 200) -> web.Response:
    return web.json_response(value, status=code)


def _discovery() -> dict[str, Any]:
    """What kopf asks for before it starts."""
    group, version = KINDS["DistributedTrainingJob"].api_version.split("/")
    served = {"version": version, "groupVersion": f"{group}/{version}"}
    job = {"name": "distributedtrainingjobs", "kind": "DistributedTrainingJob", "verbs": ["get", "list", "watch"]}
    core = [("namespaces", "Namespace", False), ("events", "Event", True)]
    return {
        "/api": {"versions": ["v1"]},
        "/api/v1": {
            "resources": [
                {"name": name, "kind": kind, "singularName": "", "namespaced": inside, "verbs": ["list"]}
                for name, kind, inside in core
            ]
        },
        "/apis": {"groups": [{"name": group, "versions": [served], "preferredVersion": served}]},
        f"/apis/{group}/{version}": {"resources": [{**job, "singularName": "", "namespaced": True}]},
    }


_DISCOVERY = _discovery()


@asynccontextmanager
async def api_server(store: MemoryStore | None = None):  # type: ignore[no-untyped-def]
    server = ApiServer(store)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
