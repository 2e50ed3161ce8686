"""The control channel over HTTP: a thin shell around the Fleet.

POST /v1/join, /v1/report with `Authorization: Bearer <token>`; GET /v1/jobs/<namespace>/<name> for the CLI;
/livez, /readyz, /metrics.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from trainmaster.contract.wire import Directive, Identity, JoinRequest, Report, WireError, decode, encode
from trainmaster_operator.control.admission import Credential
from trainmaster_operator.control.fleet import Fleet, Refused

log = logging.getLogger(__name__)

M = TypeVar("M", JoinRequest, Report)

MAX_REQUEST_BYTES = 1024 * 1024  # a report of 256 ranks with a verdict is below 150 KB
KEEP_ALIVE_S = 75.0
CLOSE_WAIT_S = 0.2


class ControlServer:
    """`ready` says whether this operator serves: its caches are filled and it leads. `metrics` renders them."""

    def __init__(self, fleet: Fleet, ready: Callable[[], bool], metrics: Callable[[], bytes]) -> None:
        self._fleet = fleet
        self._ready = ready
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    async def start(self, sock: socket.socket) -> None:
        """Serves on a bound (and perhaps already listening) socket."""
        app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=[_explained])
        app.add_routes(
            [
                web.post("/v1/join", self._join),
                web.post("/v1/report", self._report),
                web.get("/v1/jobs/{namespace}/{name}", self._job),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._render_metrics),
            ]
        )
        # A poll whose connection breaks must be cancelled: that is how the death of an agent shows at once.
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_S,
            handle_signals=False,
            shutdown_timeout=CLOSE_WAIT_S,
        )
        await self._runner.setup()
        await web.SockSite(self._runner, sock, backlog=1024).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _join(self, request: web.Request) -> web.Response:
        return await self._answer(request, JoinRequest, self._fleet.join)

    async def _report(self, request: web.Request) -> web.Response:
        return await self._answer(request, Report, self._fleet.report)

    async def _answer(
        self, request: web.Request, kind: type[M], handle: Callable[[Identity, M], Awaitable[Directive]]
    ) -> web.Response:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if not secret:
            raise Refused(401, "an Authorization header with a bearer token is missing")

        async def claim() -> Identity:
            return decode(kind, await request.read()).identity

        admission = await self._fleet.admit(Credential(scheme.lower(), secret), claim)
        message = decode(kind, await request.read())
        answer = await handle(admission.identity, message)
        return web.Response(body=encode(answer), content_type="application/json")

    async def _job(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        view = self._fleet.view((namespace, name))
        if view is None:
            raise Refused(404, f"nothing is known of job {namespace}/{name}")
        return web.Response(body=encode(view), content_type="application/json")

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _readyz(self, request: web.Request) -> web.Response:
        if not self._ready():
            raise Refused(503, "not leading yet, or caches are still filling")
        return web.Response(text="ok")

    async def _render_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


@web.middleware
async def _explained(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as refused:
        return _error(refused.status, str(refused))
    except WireError as error:
        return _error(400, str(error))
    except web.HTTPException as error:
        return _error(error.status, error.text or error.reason)


def _error(status: int, message: str) -> web.Response:
    return web.Response(status=status, body=json.dumps({"error": message}).encode(), content_type="application/json")


def listening_socket(host: str, port: int) -> socket.socket:
    """Raises OSError with the address when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from None


def inherited_socket(fd: int) -> socket.socket:
    """A listening socket that the parent process owns and keeps over our death."""
    return socket.socket(fileno=fd)
