"""The storage of checkpoints, as five operations. Only POSIX file systems are supported now.

Paths are relative to the root of the storage, with "/" between their parts. Failures are OSError, with errno where the
system gives one. Standard library only, because agents upload with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from trainmaster.contract.wire.atomic_replace import temporary
from trainmaster.rank import injected_faults

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class Storage(Protocol):
    """The operations that checkpoints need of a storage."""

    root: str

    def create_exclusive(self, path: str, data: bytes) -> bool:
        """Write a new object completely and durably. Return False, and change nothing, if there is one already."""
        ...

    def write(self, path: str, blocks: Iterable[bytes | memoryview]) -> int:
        """Write an object completely and durably, or not at all. Return its size in bytes."""
        ...

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes [start, end) of an object. Raises FileNotFoundError if there is none."""
        ...

    def list(self, path: str = "") -> dict[str, int]:
        """Return the names directly under a folder with their sizes (-1 for a folder), or {} if there is no such
        folder."""
        ...

    def remove(self, path: str) -> None:
        """Remove an object or a whole folder. Do nothing if it does not exist."""
        ...


class PosixStorage:
    """A folder that all machines of the job see. Rename and link must be atomic, as they are on NFS and Lustre."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(root)
        self._unsynced: dict[Path, bytes] = {}

    def create_exclusive(self, path: str, data: bytes) -> bool:
        """Write a new file whole and durably; return False, and change nothing, if one is there already.

        Raises OSError. If only the folder could not be synced, the file is there. The next call with the same data then
        completes it: otherwise a round that tries again would take its own lineage file for another round's.
        """
        target = self._at(path)
        if self._unsynced.get(target) == data and target.exists():
            _sync_folder(target.parent)
            self._unsynced.pop(target, None)  # another thread may have completed it meanwhile
            return True
        if target.exists():
            return False
        with self._whole(target, [data]) as (being_written, _):
            try:
                os.link(being_written, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if not self._create_without_links(target, data):
                    return False
            finally:
                with contextlib.suppress(FileNotFoundError):
                    being_written.unlink()
            self._unsynced[target] = data
        self._unsynced.pop(target, None)
        return True

    def write(self, path: str, blocks: Iterable[bytes | memoryview]) -> int:
        """Write a file whole and durably, or not at all. Return its size in bytes. Raises OSError."""
        target = self._at(path)
        with self._whole(target, blocks) as (being_written, size):
            being_written.replace(target)
        return size

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes `start` to `end` of a file. Raises FileNotFoundError if there is none."""
        with open(self._at(path), "rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else max(0, end - start))

    def list(self, path: str = "") -> dict[str, int]:
        """Return the names directly under a folder, with sizes in bytes (-1: a folder).

        {} if there is no such folder.
        """
        found = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._at(path)) as entries:
            for entry in entries:
                if entry.name.startswith("."):  # a write that is under way, or was cut off
                    continue
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = -1 if entry.is_dir() else entry.stat().st_size
        return found

    def remove(self, path: str) -> None:
        """Remove a file or a whole folder; do nothing if it isn't there."""
        target = self._at(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def _at(self, path: str) -> Path:
        parts = [part for part in path.split("/") if part]
        if any(part == ".." for part in parts):
            raise ValueError(f"storage path {path!r} leaves its root")
        return Path(self.root, *parts)

    @contextlib.contextmanager
    def _whole(self, target: Path, blocks: Iterable[bytes | memoryview]) -> Iterator[tuple[Path, int]]:
        """Write all blocks to a temporary file in the folder of `target`; the body of the context renames or links
        it."""
        injected_faults.full_disk()
        target.parent.mkdir(parents=True, exist_ok=True)
        being_written = temporary(target)
        size = 0
        try:
            with open(being_written, "wb", buffering=0) as file:
                for block in blocks:
                    rest = memoryview(block)
                    while rest:
                        written = file.write(rest) or 0
                        size += written
                        rest = rest[written:]
                os.fsync(file.fileno())
            yield being_written, size
            _sync_folder(target.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                being_written.unlink(missing_ok=True)
            raise

    def _create_without_links(self, target: Path, data: bytes) -> bool:
        try:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)
        except BaseException:
            # A part of a lineage file would keep every later round from this storage.
            with contextlib.suppress(OSError):
                target.unlink(missing_ok=True)
            raise
        return True


def open_storage(url: str) -> Storage:
    """Return the storage at a path or a file:// URL. Raises ValueError, in a sentence, for any other scheme."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return PosixStorage(url)
    if scheme == "file":
        return PosixStorage(rest)
    raise ValueError(f"checkpoint storage {url!r}: {scheme}:// isn't supported, a path or file:// is")


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
