"""A zygote that learns: a candidate imports what ranks needed and is promoted only if it can still be forked safely.

Safe means: no socket, no device and no further thread was opened by an import, and a trial fork that runs an OpenMP
and a BLAS region ends in time (a used thread pool hangs after a fork).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trainmaster.agent import hugepages, processes

TRIAL_S = 20.0


@dataclass
class Outcome:
    """What a candidate found. `refused` names the module to bar, `reason` says why; None: it may be promoted."""

    imported: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    refused: str | None = None
    reason: str = ""


def preload(names: Iterable[str]) -> dict[str, str]:
    """Import `names`, each if it can be; returns those that can't with the reason. Without torch, that is enough."""
    failed: dict[str, str] = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  a module that can't be imported is reported, never fatal
            failed[name] = f"{type(error).__name__}: {error}"
        if "torch" in failed:
            break
    return failed


def freeze() -> None:
    """Make forks cheap: objects out of the collector's sight, memory on huge pages."""
    gc.collect()
    gc.freeze()
    hugepages.collapse()


def learn(names: list[str], diary: int) -> Outcome:
    """Import `names` in this candidate and judge it. `diary`: a descriptor that holds the name being imported."""
    outcome = Outcome()
    before = _possessions()
    threads = processes.thread_count()
    for name in names:
        if name in sys.modules:
            continue
        os.pwrite(diary, name.encode()[:200].ljust(200), 0)
        outcome.failed.update(preload([name]))
        outcome.imported += name not in outcome.failed
        reason = _harm(before, threads)
        if reason:
            outcome.refused, outcome.reason = name, reason
            return outcome
    freeze()
    reason = _trial()
    if reason:
        outcome.refused, outcome.reason = "", reason
    return outcome


def _harm(before: set[str], threads: int) -> str:
    """What an import did that a fork would not survive, "" if nothing."""
    if processes.thread_count() > threads:
        return "it started a thread"
    for thing in sorted(_possessions() - before):
        if thing.startswith("socket:"):
            return "it opened a socket"
        if thing.startswith("/dev/") and thing not in ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"):
            return f"it opened {thing}"
    return ""


def _possessions() -> set[str]:
    """Open files by what they lead to, and mapped devices."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.partition("/dev/")
            if path[1]:
                found.add("/dev/" + path[2].strip())
    return found


def _trial() -> str:
    """Fork once and compute; "" when the fork ended well in time, else what was wrong."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _compute()
            code = 0
        finally:
            os._exit(code)
    pidfd = os.pidfd_open(pid)
    try:
        deadline = time.monotonic() + TRIAL_S
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return "" if status == 0 else f"a trial fork ended with wait status {status}"
            _wait_readable(pidfd, deadline - time.monotonic())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return f"a trial fork did not compute within {TRIAL_S:.0f} s"
    finally:
        os.close(pidfd)


def _wait_readable(fd: int, timeout_s: float) -> None:
    select = importlib.import_module("select")
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(max(timeout_s, 0) * 1000)


def _compute() -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(max(2, processes.available_cpus()))
        a = torch.ones(1 << 20)
        assert float((a + a).sum()) == 2.0 * (1 << 20)  # an OpenMP region
        m = torch.ones(256, 256)
        assert float((m @ m)[0, 0]) == 256.0  # a BLAS region
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        m = numpy.ones((256, 256))
        assert float((m @ m)[0, 0]) == 256.0
