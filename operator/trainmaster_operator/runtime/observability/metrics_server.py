"""GET /metrics over TLS, for clients that may read it. The probes of kubelets stay on the plain port of health.py."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from trainmaster_operator.control.fleet import Refused
from trainmaster_operator.control.http_connections import Connection, ConnectionLimits, Listener
from trainmaster_operator.runtime.observability.metrics_access import PATH, MetricsAccess

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LIMITS = ConnectionLimits(connections=64, handshakes=16, send_s=30.0)
_WORTH_COMPRESSING = 16 * 1024  # In bytes.


class MetricsServer:
    """Serves metrics over HTTPS to clients that `access` allows."""

    def __init__(self, render: Callable[[], Awaitable[bytes]], access: MetricsAccess, tls: ssl.SSLContext) -> None:
        self._render = render
        self._access = access
        self._listener = Listener(self._answer, tls, _LIMITS, lambda connection: None)

    async def start(self, sock: socket.socket) -> None:
        """Serve on a bound socket."""
        await self._listener.start(sock)

    async def stop(self) -> None:
        await self._listener.stop()

    async def _answer(self, connection: Connection, request: web.BaseRequest) -> web.Response:
        try:
            return await self._scrape(request)
        except Refused as refused:
            response = web.Response(status=refused.status, text=f"{refused}\n")
            if refused.status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            if refused.retry_after_s:
                response.headers["Retry-After"] = f"{refused.retry_after_s:.0f}"
            return response
        except Exception as error:
            log.exception("a scrape failed")
            return web.Response(status=500, text=f"{type(error).__name__} in the operator: its log says more\n")

    async def _scrape(self, request: web.BaseRequest) -> web.Response:
        if request.path != PATH:
            raise Refused(404, f"there is nothing here but {PATH}")
        if request.method != "GET":
            raise Refused(405, "GET is expected")
        await self._access.check(request.headers.get("Authorization", ""))
        body = await self._render()
        headers = {"Content-Type": CONTENT_TYPE}
        if len(body) >= _WORTH_COMPRESSING and "gzip" in request.headers.get("Accept-Encoding", ""):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)
