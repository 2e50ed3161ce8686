"""What kubelets and Prometheus ask of the operator, over plain HTTP: /livez, /readyz, /metrics.

It is served by the main event loop on purpose: a loop that is stuck doesn't answer, and the kubelet restarts it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from aiohttp import web

LOOK_EVERY_S = 1.0
CLOSE_WAIT_S = 0.2


class LoopLag:
    """How much later than asked for the event loop came back, when that was last tried."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time() + LOOK_EVERY_S
            await asyncio.sleep(LOOK_EVERY_S)
            self.seconds = max(0.0, loop.time() - asked)


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
