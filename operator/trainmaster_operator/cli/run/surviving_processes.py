"""Names the processes of a run that even SIGKILL has not ended, because they still hold memory and devices."""

from __future__ import annotations

import os
from pathlib import Path

from trainmaster_operator.local import process_tree


class Survivors:
    """Create one before any process of the run is started: this process becomes the parent of orphans below it."""

    def __init__(self) -> None:
        process_tree.adopt_orphans()
        self._before = {process.pid for process in _children()}

    def named(self) -> list[str]:
        """Return one sentence for each process that still exists although all of them were killed."""
        return [_sentence(p.pid) for p in _children() if p.pid not in self._before and not _has_ended(p.pid)]


def _children() -> list[process_tree.Process]:
    return [process for process in process_tree.table().values() if process.parent == os.getpid()]


def _has_ended(pid: int) -> bool:
    """Return whether the process has ended. One whose thread waits in the kernel looks as if it had, but cannot be
    waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _sentence(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        name = "unknown"
    return (
        f"process {pid} ({name}) can't be killed: it waits in the kernel for a file system that does not answer. "
        f"Nothing that it writes is used; it ends when the file system answers or is unmounted with force (umount -f)"
    )
