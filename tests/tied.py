"""Processes that tests start: none of them outlives the test run, not even one that is killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from trainmaster.host import processes


def tied() -> Callable[[], None]:
    """A `preexec_fn`: the kernel kills the new process when this one ends. What it starts has to see to itself."""
    return partial(processes.die_with_parent, os.getpid())


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen` of a process that dies with this one. Call it on the main thread: the tie is the thread's."""
    return subprocess.Popen(command, preexec_fn=tied(), **options)


def is_alive(pid: int) -> bool:
    """Tell whether there is a process with this pid."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
