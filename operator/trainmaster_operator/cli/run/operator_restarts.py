"""The operator of a local run is started again when it dies, unless it dies again and again right after its start."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainmaster_operator.cli.run.local_processes import ChildFailed, end, last_line, start

QUICK_S = 2.0  # An operator that dies sooner has not begun to work.
QUICK_DEATHS = 8  # In succession; after that the operator is not started again.
BACK_OFF_S = 0.1


class Operator:
    """Keeps an operator running. When it dies, the next one starts at once, because training waits for it; only
    after several quick deaths there is a back-off."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        fds: Sequence[int] = (),
        module: str = "trainmaster_operator.local.local_operator",
        died: Callable[[int], None] = lambda code: None,
    ) -> None:
        """`died`: called with the exit code of each operator that dies, negative for a signal, before the next one
        starts."""
        self._module = module
        self._arguments = arguments
        self._log = log
        self._environment = environment
        self._fds = fds
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()  # Held while a process is started that `_process` doesn't name yet.
        self._ending = False
        self._died = died
        self.deaths = 0

    async def keep(self) -> None:
        """Run operators until `end`. Raise ChildFailed if they die again and again before they begin to work."""
        quick = 0
        while not self._ending:
            started = time.monotonic()
            async with self._starting:
                self._process = await start(
                    self._module, self._arguments, self._log, signal.SIGKILL, self._environment, self._fds
                )
            if self._ending:
                self._process.kill()  # `end` was called while it was being started.
            code = await self._process.wait()
            if self._ending:
                return
            self.deaths += 1
            self._died(code)
            quick = quick + 1 if time.monotonic() - started < QUICK_S else 0
            if quick >= QUICK_DEATHS:
                words = last_line(self._log)
                raise ChildFailed(f"the operator ended with {code} {quick} times in a row: {words}; see {self._log}")
            if quick > 1:
                await asyncio.sleep(BACK_OFF_S * 2 ** (quick - 2))

    async def kill(self) -> None:
        """Send SIGKILL and wait until the operator is dead; `keep` starts the next one. An operator that is being
        started right now is killed as soon as it has started."""
        async with self._starting:
            process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def end(self, within_s: float) -> None:
        """End the operator for good."""
        self._ending = True
        await end(self._process, within_s)
