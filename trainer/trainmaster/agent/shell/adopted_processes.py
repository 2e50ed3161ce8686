"""Processes that others have left to the agent.

The agent is a subreaper, and in most containers it is process 1. So it becomes the parent of every process whose own
parent has ended: the ranks of a lost zygote, and what `kubectl exec` or a probe has left behind in the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Set

from trainmaster.host import processes

LOOK_S = 60.0
"""Seconds between two looks for processes that have ended. What the agent has started itself is waited for long before
the second look."""

TELL_AFTER_S = 10.0
"""Seconds after which a killed process that still exists is reported."""

_PAUSES_S = (0.001, 0.25)  # first and longest pause between two looks at killed processes


async def reap() -> None:
    """Reap processes that have ended and that nobody waits for, because each of them keeps a place in the limit on the
    container's processes. It never returns."""
    seen: Set[int] = frozenset()
    while True:
        await asyncio.sleep(LOOK_S)
        seen = reap_ended(seen)


def reap_ended(seen: Set[int]) -> set[int]:
    """Reap children that had ended at the last look, `seen`, and still wait for it. Return those that wait since."""
    ended = {pid for pid in processes.children(os.getpid()) if processes.state(pid) == "Z"}
    for pid in ended & seen:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return ended - seen


async def end(tell: Callable[[str, str], None], then: Callable[[], Awaitable[None]] | None = None) -> None:
    """Kill all children of this process, and call `then` when none is left.

    A process that waits in the kernel for storage that does not answer cannot be killed. The event loop goes on
    meanwhile, and `tell` gets a reason and a sentence once.
    """
    told_at = asyncio.get_running_loop().time() + TELL_AFTER_S
    pause_s, last_s = _PAUSES_S
    told = False
    while left := processes.kill_children():
        if not told and asyncio.get_running_loop().time() >= told_at:
            told = True
            tell(
                "ProcessUnkillable",
                f"process {left[0]} was killed and still exists: it waits in the kernel, for a file system that does "
                "not answer or for a device. New ranks start in this pod when it has ended",
            )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, last_s)
    if then is not None:
        await then()
