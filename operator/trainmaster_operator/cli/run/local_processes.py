"""The processes that a local run starts: the operator, which is started again when it dies, and the kubelet."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainmaster_operator.local import process_tree

QUICK_S = 2.0  # An operator that dies sooner has not begun to work.
QUICK_DEATHS = 8  # In succession; after that the operator is not started again.
BACK_OFF_S = 0.1


class ChildFailed(Exception):
    """A process that the run needs has ended. The message says which one, how, and where its log is."""


def tied(death_signal: signal.Signals) -> Callable[[], None]:
    """Return a `preexec_fn`: the kernel sends the child `death_signal` when the thread that starts it ends."""
    parent = os.getpid()

    def in_child() -> None:
        process_tree.die_with_parent(death_signal)
        if os.getppid() != parent:
            os._exit(1)  # The parent ended between fork and prctl.
        process_tree.relax()

    return in_child


async def start(
    module: str,
    arguments: Sequence[str],
    log: Path,
    death_signal: signal.Signals,
    environment: Mapping[str, str],
    fds: Sequence[int] = (),
) -> asyncio.subprocess.Process:
    """Start `python -m module` in a session of its own, so that Ctrl-C reaches only this process. The kernel sends
    the child `death_signal` when this process ends. Call it on the main thread, because the signal depends on the
    thread."""
    with open(log, "ab") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            pass_fds=fds,
            start_new_session=True,
            preexec_fn=tied(death_signal),
        )


async def end(process: asyncio.subprocess.Process | None, within_s: float) -> None:
    """Send SIGTERM to a process, and SIGKILL if it has not ended after `within_s` seconds."""
    if process is None or process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), within_s)
    except TimeoutError:
        process.kill()
        await process.wait()


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty; "" if there is none."""
    try:
        lines = log.read_bytes()[-16384:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


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
        self._ending = False
        self._died = died
        self.deaths = 0

    async def keep(self) -> None:
        """Run operators until `end`. Raise ChildFailed if they die again and again before they begin to work."""
        quick = 0
        while not self._ending:
            started = time.monotonic()
            self._process = await start(
                self._module,
                self._arguments,
                self._log,
                signal.SIGKILL,
                self._environment,
                self._fds,
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
        """Send SIGKILL and wait until the operator is dead; `keep` starts the next one."""
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def end(self, within_s: float) -> None:
        """End the operator for good."""
        self._ending = True
        await end(self._process, within_s)


class Kubelet:
    """Keeps the kubelet of a local run running."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._log = log
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._ending = False

    async def keep(self) -> None:
        """Run the kubelet until `end`. Raise ChildFailed if it dies: then all pods are dead too."""
        self._process = await start(
            "trainmaster_operator.local.process_kubelet", self._arguments, self._log, signal.SIGTERM, self._environment
        )
        if self._ending:
            self._process.kill()  # `end` was called while it was being started.
        code = await self._process.wait()
        if not self._ending:
            raise ChildFailed(f"the kubelet ended with {code}: {last_line(self._log)}; see {self._log}")

    async def end(self, within_s: float) -> None:
        self._ending = True
        await end(self._process, within_s)


def kill_pod(uid: str) -> None:
    """Send SIGKILL to the process group of a pod's agent, as at the end of a container."""
    from trainmaster.contract.wire import environment

    mark = f"{environment.POD_UID}={uid}"
    for process in process_tree.table().values():
        if process.pid == process.session and process_tree.started_with(process.pid, mark):
            process_tree.kill_group(process.group, signal.SIGKILL)
