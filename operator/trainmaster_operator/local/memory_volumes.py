"""The memory volumes of a local run: one private directory on a tmpfs, which is removed with the run.

Memory that a killed run left behind would stay in use until the machine restarts. So each run holds a lock on its
directory and removes directories whose lock is free.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TMPFS = Path("/dev/shm")
PREFIX = "trainmaster-ram-"


@contextmanager
def folder(tmpfs: Path = TMPFS) -> Iterator[Path | None]:
    """Yield a new directory, which is removed at the end; None if there is no tmpfs that this user may write to."""
    if not os.access(tmpfs, os.W_OK | os.X_OK):
        yield None
        return
    _remove_orphans(tmpfs)
    path, lock = _made(tmpfs)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _made(tmpfs: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=tmpfs))
        # Another run that cleans up between these lines takes the directory for an orphan; then another one is created.
        lock = _locked(path)
        if lock is not None:
            if path.exists():
                return path, lock
            os.close(lock)


def _remove_orphans(tmpfs: Path) -> None:
    for path in tmpfs.glob(f"{PREFIX}*"):
        lock = _locked(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the directory's lock; None if another process holds it, or the directory is
    gone or belongs to another user."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
