"""A file of the memory tier that a rank has mapped: its pages are allocated and mapped before a save copies into it."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import torch

from trainmaster.checkpoint.files.memory_tier import RamFolder, into
from trainmaster.checkpoint.state.file_layout import Layout

_MADV_POPULATE_WRITE = 23  # Linux 5.14; older kernels say EINVAL, and the copy maps the pages
_ALLOCATED = 64 << 20  # bytes that are allocated by one call
_MAPPED = 4 << 20  # bytes that are mapped by one call: other threads that map memory or fork wait until it returns
_HIDDEN = ".prepared-"  # a file that no save has used yet; then its number and the rank

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class MappedFile:
    """A mapped file. `holds` is the (step, round) that its receipt names, or None without a receipt."""

    def __init__(self, path: Path, fd: int, size: int, holds: tuple[int, int] | None = None) -> None:
        self.path, self.fd, self.size, self.holds = path, fd, size, holds
        self.memory = mmap.mmap(fd, size)
        self.waits = False  # for its pages to be mapped
        self._layout: Layout | None = None
        self._reserved = 0
        self._targets: list[torch.Tensor] = []

    def targets(self, layout: Layout, reserved: int) -> list[torch.Tensor]:
        """Return the parts of the mapping that the parts of `layout` are copied to, behind `reserved` bytes."""
        if self._layout is not layout or self._reserved != reserved:
            whole = torch.frombuffer(self.memory, dtype=torch.uint8)[reserved:]
            self._targets = [whole[s:e].view(part.dtype).view(part.shape) for s, e, part in layout.parts]
            self._layout, self._reserved = layout, reserved
        return self._targets

    def populate(self, stopped: Callable[[], bool]) -> None:
        """Map all pages, until `stopped()` is true. No byte changes."""
        first = ctypes.c_char.from_buffer(self.memory)  # keeps the mapping
        for start in range(0, self.size, _MAPPED):
            end = min(start + _MAPPED, self.size)
            if stopped() or _libc.madvise(ctypes.addressof(first) + start, end - start, _MADV_POPULATE_WRITE):
                return

    def close(self) -> None:
        """Close the file. The mapping goes with its last reference."""
        os.close(self.fd)
        self._targets = []


def make(path: Path, size: int, stopped: Callable[[], bool] = lambda: False) -> MappedFile:
    """Return a new locked file, all of whose pages are allocated. Raises OSError if they are not, or if `stopped()`
    becomes true; then no file is left."""
    fd = into(path.parent, lambda: _open_locked(path))
    try:
        for start in range(0, size, _ALLOCATED):
            if stopped():
                raise InterruptedError
            # A full tmpfs is an error here, and a SIGBUS later.
            os.posix_fallocate(fd, start, min(_ALLOCATED, size - start))
        return MappedFile(path, fd, size)
    except OSError:
        path.unlink(missing_ok=True)
        os.close(fd)
        raise


def prepared_path(folder: RamFolder, number: int, round: int, rank: int) -> Path:
    """Return the path of a file that no save has used yet. `RamFolder.sweep` removes it."""
    directory = folder.path(0, round, rank).parent
    return directory / f"{_HIDDEN}{number}-{rank:05d}.safetensors"


def sweep_prepared(folder: RamFolder) -> None:
    """Remove files that no save has used, of ranks that have ended. A later round may have fewer ranks."""
    for path in folder.files(_HIDDEN):
        try:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        except (BlockingIOError, FileNotFoundError):
            continue


def _open_locked(path: Path) -> int:
    """Raises FileNotFoundError if another rank has removed the file before it was locked."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if not os.path.samestat(os.stat(path), os.fstat(fd)):
            raise FileNotFoundError(path)
    except OSError:
        os.close(fd)
        raise
    return fd
