"""What kubelets ask the operator over plain HTTP: /livez and /readyz, and /metrics if everybody may read it.

A separate thread answers, so that a main loop that serves thousands of agents at once does not look stuck. The thread
checks that the main loop still turns; if it does not, the kubelet restarts the operator. The main loop answers the
questions, and while it is busy its last answer counts. Metrics wait for the main loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from aiohttp import web

T = TypeVar("T")

CLOSE_WAIT_S = 0.2
BEAT_S = 1.0
TURNS_WITHIN_S = 30.0
"""A main loop that takes more seconds for one turn is stuck."""
ASK_S = 1.0
"""Seconds to wait for an answer of the main loop; it is shorter than the time-out of probes."""


class HealthServer:
    """Serves the probes. `wrong` returns sentences that say why this process should be restarted, `missing`
    sentences that say why it cannot take over yet. `metrics`: None if they are served elsewhere."""

    def __init__(
        self,
        wrong: Callable[[], list[str]],
        missing: Callable[[], list[str]],
        metrics: Callable[[], Coroutine[None, None, bytes]] | None,
    ) -> None:
        self._wrong = wrong
        self._missing = missing
        self._metrics = metrics
        self._turned_at = 0.0
        self._known: dict[Callable[[], list[str]], list[str]] = {}  # The last answers.
        self._beating: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._main: asyncio.AbstractEventLoop | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    async def start(self, sock: socket.socket) -> None:
        """Serve on a bound socket, and watch the loop in which this is called."""
        self._main = asyncio.get_running_loop()
        self._turned_at = self._main.time()
        self._known = {question: question() for question in (self._wrong, self._missing)}
        self._beating = asyncio.create_task(self._beat())
        serving = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(sock, serving), name="health", daemon=True)
        self._thread.start()
        await serving.wait()

    async def stop(self) -> None:
        """Stop serving and end the thread."""
        if self._thread is None or self._own is None or self._over is None or self._beating is None:
            return
        self._beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._beating
        self._own.call_soon_threadsafe(self._over.set)
        await asyncio.to_thread(self._thread.join)

    async def _beat(self) -> None:
        while True:
            self._turned_at = asyncio.get_running_loop().time()
            await asyncio.sleep(BEAT_S)

    # -- in the thread

    def _run(self, sock: socket.socket, serving: asyncio.Event) -> None:
        asyncio.run(self._serve(sock, serving))

    async def _serve(self, sock: socket.socket, serving: asyncio.Event) -> None:
        self._own, self._over = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._render),
            ]
        )
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=CLOSE_WAIT_S)
        await runner.setup()
        await web.SockSite(runner, sock).start()
        assert self._main is not None
        self._main.call_soon_threadsafe(serving.set)
        await self._over.wait()
        await runner.cleanup()

    async def _livez(self, request: web.Request) -> web.Response:
        late_s = asyncio.get_running_loop().time() - self._turned_at  # Both loops use the machine's clock.
        stuck = [f"the event loop has been blocked for {late_s:.0f} s"] if late_s >= TURNS_WITHIN_S else []
        return _build_response(stuck or await self._asked(self._wrong))

    async def _readyz(self, request: web.Request) -> web.Response:
        return _build_response(await self._asked(self._missing))

    async def _render(self, request: web.Request) -> web.Response:
        if self._metrics is None:
            return web.Response(status=404, text="metrics are served over HTTPS, on the port for metrics\n")
        assert self._main is not None
        body = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._metrics(), self._main))
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _asked(self, question: Callable[[], list[str]]) -> list[str]:
        with contextlib.suppress(asyncio.TimeoutError):
            self._known[question] = await asyncio.wait_for(self._in_main(question), ASK_S)
        return self._known[question]

    async def _in_main(self, make: Callable[[], T]) -> T:
        async def made() -> T:
            return make()

        assert self._main is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(made(), self._main))


def _build_response(problems: list[str]) -> web.Response:
    """Return 503 with one problem per line, or 200 with "ok" if there is none."""
    return web.Response(status=503 if problems else 200, text="".join(f"{line}\n" for line in problems or ["ok"]))
