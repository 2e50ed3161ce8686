"""What kubelets and Prometheus ask of the operator, over plain HTTP: /livez, /readyz, /metrics.

It is served by the main event loop on purpose: a loop that is stuck doesn't answer, and the kubelet restarts it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from aiohttp import web

CLOSE_WAIT_S = 0.2


class HealthServer:
    """`wrong` and `missing` say in sentences why this process should be restarted, and why it can't take over yet."""

    def __init__(
        self, wrong: Callable[[], list[str]], missing: Callable[[], list[str]], metrics: Callable[[], bytes]
    ) -> None:
        self._wrong = wrong
        self._missing = missing
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    async def start(self, sock: socket.socket) -> None:
        """Serves on a bound socket."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._render),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=CLOSE_WAIT_S)
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _livez(self, request: web.Request) -> web.Response:
        return _told(self._wrong())

    async def _readyz(self, request: web.Request) -> web.Response:
        return _told(self._missing())

    async def _render(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _told(problems: list[str]) -> web.Response:
    return web.Response(status=503 if problems else 200, text="".join(f"{line}\n" for line in problems or ["ok"]))
