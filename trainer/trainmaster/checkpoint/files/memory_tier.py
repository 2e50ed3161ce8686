"""The memory tier of an agent: checkpoint files on a tmpfs that outlive the ranks that wrote them.

    <root>/step-<N>.r<round>/rank-<rank>.safetensors    a rank's whole local state
                             receipt-<rank>.json        written when that file is complete

There is no manifest: a step is usable if the receipts in all memories of the job cover every shard. A file's own header
says what the file holds, so its receipt is small. A file that is being written has no receipt and a hidden name. This
module needs the standard library only, because agents copy and serve these files in any image.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from trainmaster.contract.wire.atomic_replace import replace
from trainmaster.contract.wire.checkpoint_format import (
    Receipt,
    directory_name,
    parse_directory,
    receipt_name,
    shard_name,
)
from trainmaster.contract.wire.message_codec import WireError, decode, encode
from trainmaster.host import rank_memory

try:  # the same sums by instructions made for them, in a ninth of the time
    from isal import isal_zlib as zlib
except ImportError:
    import zlib  # type: ignore[no-redef]

_BLOCK = 4 << 20
_TRIES = 100

Made = TypeVar("Made")


class RamFolder:
    """The folder of the memory tier. All files together may take `budget` bytes; ask `room` before you add a file."""

    def __init__(self, root: str | os.PathLike[str], budget: int) -> None:
        self.root, self.budget = Path(root), budget

    def path(self, step: int, round: int, rank: int) -> Path:
        """Return the path of the state of `rank` after `step`."""
        return self.root / directory_name(step, round) / shard_name(rank)

    def receipt_path(self, step: int, round: int, rank: int) -> Path:
        """Return the path of the receipt of that state."""
        return self.root / directory_name(step, round) / receipt_name(rank)

    def names(self) -> list[tuple[int, int, int]]:
        """Return (step, round, rank) of every receipt, newest step first. No file is read."""
        found = []
        for path in self.files("receipt-"):
            step, round = parse_directory(path.parent.name) or (0, 0)
            if path.suffix == ".json":
                found.append((step, round, int(path.stem[8:])))
        return sorted(found, reverse=True)

    def files(self, prefix: str) -> Iterator[Path]:
        """Yield the files whose names begin with `prefix`. Others may remove files, and folders that became empty,
        meanwhile."""
        for folder in self._folders():
            with contextlib.suppress(FileNotFoundError):
                for name in os.listdir(folder):
                    if name.startswith(prefix):
                        yield folder / name

    def receipts(self) -> list[Receipt]:
        """Return the receipts of all complete files, newest step first. The content of the files is not verified."""
        found = []
        for step, round, rank in self.names():
            with contextlib.suppress(OSError, WireError):
                receipt = self.receipt(step, round, rank)
                if os.stat(self.path(step, round, rank)).st_size == receipt.file.size:
                    found.append(receipt)
        return found

    def receipt(self, step: int, round: int, rank: int) -> Receipt:
        """Return a receipt. Raises OSError if there is none, and WireError if it cannot be decoded."""
        return decode(Receipt, self.receipt_path(step, round, rank).read_bytes())

    def adopt(self, step: int, round: int, rank: int, file: str | os.PathLike[str], receipt: Receipt | bytes) -> None:
        """Move a complete file of the same tmpfs to its place, and write its receipt. From then on the file counts."""
        target = self.path(step, round, rank)
        into(target.parent, lambda: os.replace(file, target))
        self.confirm(step, round, rank, receipt)

    def confirm(self, step: int, round: int, rank: int, receipt: Receipt | bytes) -> None:
        """Write the receipt of a file that is already in its place."""
        replace(self.receipt_path(step, round, rank), receipt if isinstance(receipt, bytes) else encode(receipt))

    def remove(self, step: int, round: int, rank: int) -> None:
        """Remove a state. The receipt is removed first, so that a half-removed state does not count."""
        for path in (self.receipt_path(step, round, rank), self.path(step, round, rank)):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others' files are in it
            path.parent.rmdir()

    def prune(self, keep_steps: int = 2) -> None:
        """Keep the states of the `keep_steps` newest steps of each rank, and remove all others."""
        kept: dict[int, set[tuple[int, int]]] = {}
        for step, round, rank in self.names():
            steps = kept.setdefault(rank, set())
            if len(steps) >= keep_steps:
                self.remove(step, round, rank)
            else:
                steps.add((step, round))

    def sweep(self, rank: int) -> None:
        """Remove files that earlier processes of `rank` left incomplete. None of these processes may be running."""
        for path in self.files("."):
            if f"-{rank:05d}." in path.name:
                path.unlink(missing_ok=True)
        for folder in self._folders():
            with contextlib.suppress(OSError):
                folder.rmdir()

    def used(self) -> int:
        """Return the bytes that all files take, with those that are being written."""
        total = 0
        for folder in self._folders():
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat().st_size
        return total

    def room(self, size: int) -> bool:
        """Return True if `size` more bytes fit into the budget, the tmpfs and the container's memory."""
        return self.used() + size <= self.budget and size < self.left()

    def left(self) -> float:
        """Return the bytes that are left in the tmpfs and in the container's memory, whatever the budget is."""
        free = os.statvfs(self.root)
        return min(free.f_bavail * free.f_frsize, _memory_left())

    def largest(self) -> int:
        """Return the bytes of the largest complete state; 0 if there is none."""
        sizes = [0]
        for name in self.names():
            with contextlib.suppress(FileNotFoundError):
                sizes.append(self.path(*name).stat().st_size)
        return max(sizes)

    @contextlib.contextmanager
    def reading(self, step: int, round: int, rank: int) -> Iterator[BinaryIO]:
        """Open a state as a context that keeps others from overwriting it. Raises FileNotFoundError without a
        receipt."""
        with open(self.path(step, round, rank), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            # It may have been taken back for a newer step between the two calls.
            if not os.path.exists(self.receipt_path(step, round, rank)):
                raise FileNotFoundError(self.receipt_path(step, round, rank))
            yield file

    def clear(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _folders(self) -> list[Path]:
        try:
            return sorted(folder for folder in self.root.iterdir() if parse_directory(folder.name))
        except FileNotFoundError:
            return []


def _memory_left() -> float:
    """Return the bytes that this container may still take before the kernel kills one of its processes."""
    container = rank_memory.container()
    limit, used = (container.limit(), container.used()) if container is not None else (None, None)
    return float("inf") if limit is None or used is None else limit - used


def into(folder: Path, act: Callable[[], Made]) -> Made:
    """Call `act`, which puts a file into `folder`, and return its result.

    Call it again if another process removes the folder in the meantime, because the folder is empty.
    """
    for _ in range(_TRIES):
        # Where the folder is removed between two looks at it, `mkdir` says that something else is in its place.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            folder.mkdir(parents=True, exist_ok=True)
            return act()
    return act()


def crc32(data: memoryview | bytes, value: int = 0) -> int:
    """Return the CRC-32 of `data`, continued from `value`, the CRC-32 of the data before it."""
    return zlib.crc32(data, value)


def checksum(data: memoryview | bytes, value: int = 0) -> str:
    """Return the checksum of a file in RAM, as `ShardFile.checksum` holds it.

    A CRC-32 takes less time than the copy of the data; a sha256 would take more.
    """
    whole = memoryview(data).cast("B")
    for start in range(0, len(whole), _BLOCK):  # in blocks, each without the interpreter's lock
        value = crc32(whole[start : start + _BLOCK], value)
    return f"crc32:{value:08x}"


def checksum_of(file: BinaryIO) -> str:
    """Return the `checksum` of a whole open file."""
    value = 0
    file.seek(0)
    while block := file.read(_BLOCK):
        value = crc32(block, value)
    return f"crc32:{value:08x}"
