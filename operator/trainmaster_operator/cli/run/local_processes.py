"""The processes that a local run starts, and its kubelet. `operator_restarts` has its operator."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainmaster_operator.local import process_tree


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
