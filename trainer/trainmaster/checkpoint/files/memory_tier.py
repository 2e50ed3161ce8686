"""What an agent's memory holds of checkpoints: files on a tmpfs that outlive the ranks that wrote them.

    <root>/step-<N>.r<round>/rank-<rank>.safetensors    a rank's whole local state
                             receipt-<rank>.json        written when that file is whole

There is no manifest: a step is usable if the receipts found anywhere cover every shard. What a file holds stands in its
own header, so its receipt is small. A file that is being written has no receipt, and a hidden name. The standard
library is enough for it: agents copy and serve these files, in whatever image.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from trainmaster.contract.wire.checkpoint_format import (
    Receipt,
    directory_name,
    parse_directory,
    receipt_name,
    shard_name,
)
from trainmaster.contract.wire.message_codec import WireError, decode, encode
from trainmaster.contract.wire.temporary import replace
from trainmaster.host import memory

try:  # the same sums by instructions made for them, in a ninth of the time
    from isal import isal_zlib as zlib
except ImportError:
    import zlib  # type: ignore[no-redef]

_BLOCK = 4 << 20
_TRIES = 100

Made = TypeVar("Made")


class RamFolder:
    """`budget`: bytes that all files together may take; whoever adds one asks `room` first."""

    def __init__(self, root: str | os.PathLike[str], budget: int) -> None:
        self.root, self.budget = Path(root), budget

    def path(self, step: int, round: int, rank: int) -> Path:
        """Return where the file of a rank lies, or would lie."""
        return self.root / directory_name(step, round) / shard_name(rank)

    def receipt_path(self, step: int, round: int, rank: int) -> Path:
        """Return where the receipt of a rank's file lies, or would lie."""
        return self.root / directory_name(step, round) / receipt_name(rank)

    def names(self) -> list[tuple[int, int, int]]:
        """Return (step, round, rank) of every receipt, newest step first. Cheap: no file is read."""
        found = []
        for folder in self._folders():
            step, round = parse_directory(folder.name) or (0, 0)
            with contextlib.suppress(FileNotFoundError):
                for name in os.listdir(folder):
                    if name.startswith("receipt-") and name.endswith(".json"):
                        found.append((step, round, int(name[8:-5])))
        return sorted(found, reverse=True)

    def receipts(self) -> list[Receipt]:
        """Return the receipts of the files that are whole, newest step first. Their content isn't verified here."""
        found = []
        for step, round, rank in self.names():
            with contextlib.suppress(OSError, WireError):
                receipt = self.receipt(step, round, rank)
                if os.stat(self.path(step, round, rank)).st_size == receipt.file.size:
                    found.append(receipt)
        return found

    def receipt(self, step: int, round: int, rank: int) -> Receipt:
        """Return the receipt of a rank's file. Raises OSError without one, WireError for one that can't be read."""
        return decode(Receipt, self.receipt_path(step, round, rank).read_bytes())

    def adopt(self, step: int, round: int, rank: int, file: str | os.PathLike[str], receipt: Receipt | bytes) -> None:
        """Take a whole file on the same tmpfs, by its name, then its receipt: from here on it counts."""
        target = self.path(step, round, rank)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, target)
        self.confirm(step, round, rank, receipt)

    def confirm(self, step: int, round: int, rank: int, receipt: Receipt | bytes) -> None:
        """Write the receipt of a file that is in its place."""
        replace(self.receipt_path(step, round, rank), receipt if isinstance(receipt, bytes) else encode(receipt))

    def remove(self, step: int, round: int, rank: int) -> None:
        """Remove a file and its receipt. The receipt goes first, so that a half-removed file is none."""
        for path in (self.receipt_path(step, round, rank), self.path(step, round, rank)):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others' files are in it
            path.parent.rmdir()

    def prune(self, keep_steps: int = 2) -> None:
        """Keep the files of the `keep_steps` newest steps of each rank, and remove all others."""
        kept: dict[int, set[tuple[int, int]]] = {}
        for step, round, rank in self.names():
            steps = kept.setdefault(rank, set())
            if len(steps) >= keep_steps:
                self.remove(step, round, rank)
            else:
                steps.add((step, round))

    def sweep(self, rank: int) -> None:
        """Remove what processes of `rank` left half-written. None of them may live."""
        for folder in self._folders():
            for path in folder.glob(f".*-{rank:05d}.*"):
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()

    def used(self) -> int:
        """Return the bytes that all files take, also those that are being written."""
        total = 0
        for folder in self._folders():
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat().st_size
        return total

    def room(self, size: int) -> bool:
        """Return whether `size` more bytes fit into the budget and into the tmpfs."""
        free = os.statvfs(self.root)
        return self.used() + size <= self.budget and size < min(free.f_bavail * free.f_frsize, _memory_left())

    @contextlib.contextmanager
    def reading(self, step: int, round: int, rank: int) -> Iterator[BinaryIO]:
        """Open a file, and keep it from being overwritten while it is read.

        Raises FileNotFoundError without a receipt.
        """
        with open(self.path(step, round, rank), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            # It may have been taken back for a newer step between the two calls.
            if not os.path.exists(self.receipt_path(step, round, rank)):
                raise FileNotFoundError(self.receipt_path(step, round, rank))
            yield file

    def clear(self) -> None:
        """Remove the whole folder."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _folders(self) -> list[Path]:
        try:
            return sorted(folder for folder in self.root.iterdir() if parse_directory(folder.name))
        except FileNotFoundError:
            return []


def _memory_left() -> float:
    """Bytes that this container may still take before the kernel ends one of its processes."""
    container = memory.container()
    limit, used = (container.limit(), container.used()) if container is not None else (None, None)
    return float("inf") if limit is None or used is None else limit - used


def into(folder: Path, act: Callable[[], Made]) -> Made:
    """Return what `act` returns, which puts a file into `folder`.

    It is called again if a neighbour removes the folder meanwhile, because it is empty.
    """
    for _ in range(_TRIES):
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return act()
    return act()


def crc32(data: memoryview | bytes, value: int = 0) -> int:
    """Return the CRC-32 of `data` after other data of which it was `value`."""
    return zlib.crc32(data, value)


def checksum(data: memoryview | bytes, value: int = 0) -> str:
    """Return what `ShardFile.checksum` holds of a file in RAM: cheaper than the copy, which sha256 isn't."""
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
