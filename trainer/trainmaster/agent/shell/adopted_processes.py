"""Processes that others have left to the agent.

The agent is a subreaper. So it becomes the parent of every process below it whose own parent has ended, such as the
ranks of a lost zygote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trainmaster.host import processes

TELL_AFTER_S = 10.0
"""Seconds after which a killed process that still exists is reported."""

_PAUSES_S = (0.001, 0.25)  # first and longest pause between two looks at killed processes


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
