"""The lock of a folder in which torch compiles an extension, for ranks that may be killed while they compile.

In torch 2.13 and older versions, the lock is a file that its owner removes when it has compiled. A rank that is killed
meanwhile leaves the file, and every later process would wait for it without an end. So the owner holds an flock on the
file as well, which ends with its process, and writes into the file that it does. Such a file that nobody holds is
removed. A lock of a process that does not run under Trainmaster is left as it is. torch 2.15 has another lock, which
ends with its process. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
from typing import Any

from trainmaster.agent.frameworks.framework import Watch

_MARK = b"held with flock\n"


def watch_extension_lock(module: Any, watch: Watch) -> None:
    """Let `torch.utils.file_baton` remove a lock whose owner is dead."""
    original = module.FileBaton.try_acquire

    @functools.wraps(original)
    def try_acquire(baton: Any) -> Any:
        with contextlib.suppress(OSError):
            _remove_if_dead(baton.lock_file_path)
        acquired = original(baton)
        if acquired:
            with contextlib.suppress(OSError):
                _hold(baton.fd, baton.lock_file_path)
        return acquired

    finish = module.FileBaton.release

    @functools.wraps(finish)
    def release(baton: Any) -> Any:
        """Hold the lock until its file is removed: torch closes it before, and a rank that looks just then would take
        its owner for a dead one."""
        held = os.dup(baton.fd) if baton.fd is not None else None
        try:
            return finish(baton)
        finally:
            if held is not None:
                os.close(held)

    module.FileBaton.try_acquire, module.FileBaton.release = try_acquire, release


def _hold(descriptor: int, path: str) -> None:
    """Hold a lock until this process ends. Its file says so only afterwards, so nobody takes it for a dead one."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(path, "r+b") as file:  # torch's descriptor is for reading
        file.write(_MARK)


def _remove_if_dead(path: str) -> None:
    """Remove a lock that says that its owner holds it, if nobody does. Raises OSError if there is none, or it is held.

    Of several processes that do this, only the first removes the file: a later one finds that the path leads to no
    file, or to another one.
    """
    with open(path, "rb") as file:
        if file.read() != _MARK:
            return
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
            os.remove(path)
