"""An HTTP server on loopback that answers as a test tells it to, and an adapter that talks to it."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import certifi
from aiohttp import web
from kubernetes.aio import client

from trainmaster_operator.cluster.kubernetes import KubernetesCluster
from trainmaster_operator.cluster.kubernetes_connection import CONNECTIONS, ApiCalls, Connection
from trainmaster_operator.cluster.port import KINDS, Object

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    """A request as the server got it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class FakeApi:
    cluster: KubernetesCluster
    seen: list[Seen] = field(default_factory=list)


@asynccontextmanager
async def fake_api(
    answer: Answer,
    configuration: client.Configuration | None = None,
    calls: ApiCalls | None = None,
    connections: int = CONNECTIONS,
) -> AsyncIterator[FakeApi]:
    """Every request goes to `answer`, after it has been written down."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        api.seen.append(
            Seen(
                request.method,
                request.raw_path.partition("?")[0],
                dict(request.query),
                dict(request.headers),
                json.loads(body) if body else None,
            )
        )
        return await answer(request)  # type: ignore[arg-type]

    runner = web.ServerRunner(web.Server(handle, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = configuration or client.Configuration(ca_cert_data=_one_authority())
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = FakeApi(KubernetesCluster(Connection(configuration, calls, connections)))
    try:
        yield api
    finally:
        await api.cluster.close()
        await runner.cleanup()


@functools.cache
def _one_authority() -> str:
    """Any certificate: to load all of the system's for each client takes longer than most tests."""
    end = "-----END CERTIFICATE-----"
    return Path(certifi.where()).read_text().partition(end)[0] + end


def answers(*given: web.Response | Exception) -> Answer:
    """One after another; an exception breaks the connection instead."""
    left = list(given)

    async def answer(request: web.Request) -> web.StreamResponse:
        next_one = left.pop(0)
        if isinstance(next_one, Exception):
            broken(request)
        assert isinstance(next_one, web.Response)
        return next_one

    return answer


def broken(request: web.BaseRequest) -> None:
    """The connection breaks without another byte."""
    assert request.transport is not None
    request.transport.abort()
    raise ConnectionResetError


def streams(*chunks: bytes, then: Callable[[web.BaseRequest], Awaitable[None]] | None = None) -> Answer:
    """A body in chunks, each sent by itself."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then:
            await then(request)
        return response

    return answer


async def never(request: web.BaseRequest) -> None:
    await asyncio.Event().wait()


def as_json(value: Any, code: int = 200, **headers: str) -> web.Response:
    return web.Response(
        status=code, body=json.dumps(value).encode(), content_type="application/json", headers=headers or None
    )


def status(code: int, reason: str, message: str, **details: Any) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    }


def page(kind: str, items: list[Object], version: str = "7", rest: str = "") -> web.Response:
    """As a real server: the items of a built-in kind don't say what they are."""
    meta = {"resourceVersion": version, **({"continue": rest, "remainingItemCount": 1} if rest else {})}
    listed = [{key: value for key, value in obj.items() if key not in ("kind", "apiVersion")} for obj in items]
    return as_json({"kind": f"{kind}List", "apiVersion": KINDS[kind].api_version, "metadata": meta, "items": listed})


def told(type_: str, obj: Object) -> bytes:
    """One line of a watch."""
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"
