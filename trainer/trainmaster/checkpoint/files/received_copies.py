"""Copies of ranks' states that come from a peer into an agent's memory tier, if there is room for them.

Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
from collections.abc import Collection
from pathlib import Path

from trainmaster.checkpoint.files.memory_tier import RamFolder, checksum, crc32, into
from trainmaster.checkpoint.files.peer_connection import Link, Refused
from trainmaster.contract.wire import memory_tier_size
from trainmaster.contract.wire.checkpoint_format import Receipt
from trainmaster.contract.wire.message_codec import WireError, decode

_BLOCK = 1 << 20
_COPY = ".copy-"  # how files are called while they come


def keep_whole(
    link: Link,
    folder: RamFolder,
    step: int,
    round: int,
    rank: int,
    receipt: bytes,
    size: int,
    own: Collection[int] | None = None,
) -> None:
    """Receive a file from `link` into `folder`, and keep it if it matches its receipt.

    Without `own`, this process has asked for the file. With `own`, a peer offers it and waits to hear that it may send;
    `own` are the ranks of this pod, and the files of all other ranks may take half of the budget. Raises Refused with
    status 400 for the receipt, 422 for the content, and 507 if there is no room.
    """
    try:
        said = decode(Receipt, receipt)
    except WireError as error:
        raise Refused(400, str(error)) from None
    if (said.step, said.round, said.rank, said.file.size) != (step, round, rank, size) or size < 1:
        raise Refused(400, "the receipt is of another file")
    path, descriptor = _free_file(folder, step, round, rank, size, own)
    try:
        if own is not None:
            link.send("HTTP/1.1 100 Continue", {})
        with mmap.mmap(descriptor, size) as memory, memoryview(memory) as view:
            crc = 0
            for start in range(0, size, _BLOCK):
                with view[start : start + _BLOCK] as block:
                    link.read_into(block)
                    crc = crc32(block, crc)
        if said.file.checksum != checksum(b"", crc):
            raise Refused(422, "its content doesn't match its checksum")
        folder.adopt(step, round, rank, path, receipt)
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def _free_file(
    folder: RamFolder, step: int, round: int, rank: int, size: int, own: Collection[int] | None
) -> tuple[Path, int]:
    """Return a file of `size` bytes with a hidden name, open and locked, for a state of this rank. Raises Refused.

    Two states of each rank are kept: the newest complete one and the one that arrives. Rounds are compared before
    steps, because a later round may have gone back to an earlier step. The pages of an older state are used again,
    because new pages cost as much time as the copy.
    """
    older = sorted(((r, s) for s, r, of in folder.names() if of == rank and (s, r) != (step, round)), reverse=True)
    parent = folder.path(step, round, rank).parent
    _sweep(folder, rank)
    try:
        path, descriptor = _hidden(parent, rank)
        for r, s in older[1:]:
            descriptor = _taken(folder, (s, r, rank), path, descriptor)
        try:
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, 0)
                if not _made_room(folder, round, rank, size, own):
                    raise Refused(507, _no_room(folder, size, own))
                os.posix_fallocate(descriptor, 0, size)  # a full tmpfs is an error here, and a SIGBUS later
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
    except Refused:
        raise
    except OSError as error:
        raise Refused(507, str(error)) from None
    return path, descriptor


def _hidden(parent: Path, rank: int) -> tuple[Path, int]:
    descriptor, name = into(parent, lambda: tempfile.mkstemp(prefix=f"{_COPY}{rank}-", dir=parent))
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return Path(name), descriptor


def _taken(folder: RamFolder, state: tuple[int, int, int], path: Path, descriptor: int) -> int:
    """Remove a state and move its file to `path`, unless another process reads it. Return the open one of the two
    files."""
    folder.receipt_path(*state).unlink(missing_ok=True)
    try:
        found = os.open(folder.path(*state), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return descriptor
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(folder.path(*state), path)
        descriptor, found = found, descriptor
    except BlockingIOError:
        pass
    finally:
        os.close(found)
        folder.remove(*state)
    return descriptor


def _sweep(folder: RamFolder, rank: int) -> None:
    """Remove files of `rank` that a process left incomplete when it was killed."""
    for path in folder.files(f"{_COPY}{rank}-"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _made_room(folder: RamFolder, round: int, rank: int, size: int, own: Collection[int] | None) -> bool:
    """Remove other ranks' files of earlier rounds, oldest first, until `size` bytes fit. Return True if they fit.

    A rank that resumes now has already loaded what it needs of these files.
    """
    for s, r, of in sorted(folder.names(), key=lambda name: (name[1], name[0], name[2])):
        if _fits(folder, size, own):
            return True
        if r < round and of != rank and (own is None or of not in own):
            folder.remove(s, r, of)
    return _fits(folder, size, own)


def _fits(folder: RamFolder, size: int, own: Collection[int] | None) -> bool:
    if own is not None:
        paths = (folder.path(*name) for name in folder.names() if name[2] not in own)
        if sum(path.stat().st_size for path in paths if path.exists()) + size > folder.budget // 2:
            return False
    return folder.room(size)


def _no_room(folder: RamFolder, size: int, own: Collection[int] | None) -> str:
    """Return why `size` bytes don't fit: the job's limit is too small, or other files or processes have the memory."""
    if own:
        file = memory_tier_size.file_size(max(size, folder.largest()))
        limit = memory_tier_size.limit_of(folder.budget)
        if words := memory_tier_size.shortage(file, len(own), limit, copies=True):
            return f"checkpoints in memory {words}"
    return f"its memory for checkpoints has no room for {size >> 20} MiB"
