"""Where each part of a table ends in the sequence of its tokens: counted once, and kept in a file for later starts.

Ranks of one machine wait for the one that counts. Of several machines each may count; what they write is the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmaster.contract.wire.atomic_replace import temporary
from trainmaster.errors import DataError

POLL_S = 0.1


def ends_of_parts(
    key: str,
    parts: int,
    counts: Callable[[], Iterator[Sequence[int]]],
    folder: Path | None,
    beat: Callable[[], None],
) -> NDArray[np.int64]:
    """Return the end of each part [parts], from the file of this key, or of the `counts` of their tokens.

    The file lies in `folder`, or, without one or if nothing can be written there, in a folder for temporary files.
    `beat` is called while it counts or waits. Raises DataError if no folder can be written.
    """
    own = Path(tempfile.gettempdir(), f"trainmaster-token-counts-{os.getuid()}")
    paths = [place / f"token-counts-{key}.npy" for place in (folder, own) if place is not None]
    found = _find(paths, parts)
    if found is None:
        with _locked(own, key, beat):
            found = _find(paths, parts)
            if found is None:
                for left in own.glob(f".token-counts-{key}.npy.*"):  # by a process that was killed while it counted
                    left.unlink(missing_ok=True)
                found = _write(paths, parts, counts, beat)
    return found


def _find(paths: list[Path], parts: int) -> NDArray[np.int64] | None:
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            ends: NDArray[np.int64] = np.load(path, mmap_mode="r", allow_pickle=False)
            if ends.dtype == np.int64 and ends.shape == (parts,):
                return ends
    return None


@contextlib.contextmanager
def _locked(folder: Path, key: str, beat: Callable[[], None]) -> Iterator[None]:
    """A context in which one process of this machine is at a time. The lock of a process that ends is free."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = open(folder / f"{key}.lock", "a")  # noqa: SIM115
    except OSError as error:
        raise DataError(f"data.path: what is counted can't be kept in {folder}: {error.strerror}; set TMPDIR") from None
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                beat()
                time.sleep(POLL_S)
        yield


def _write(
    paths: list[Path], parts: int, counts: Callable[[], Iterator[Sequence[int]]], beat: Callable[[], None]
) -> NDArray[np.int64]:
    refused = ""
    for path in paths:
        part = temporary(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            ends: Any = np.lib.format.open_memmap(part, "w+", np.int64, (parts,))
            with part.open("r+b") as file:  # A full disk would end the process later, as a fault of the mapped memory.
                os.posix_fallocate(file.fileno(), 0, part.stat().st_size)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            refused = f"{path.parent}: {error.strerror}"
            continue
        try:
            at = total = 0
            for some in counts():
                ends[at : at + len(some)] = total + np.cumsum(some)
                at, total = at + len(some), total + sum(some)
                beat()
            assert at == parts
            ends.flush()
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return np.asarray(ends)
    raise DataError(f"data.path: what is counted can't be kept in {refused}; set TMPDIR to a folder with room")
