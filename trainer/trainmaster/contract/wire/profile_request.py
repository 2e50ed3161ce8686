"""A request to record steps of a training that runs: a file in a folder.

The file holds the number of steps and, where each rank records by itself, the identity of the request. Ranks look for
the file at each step. In Trainmaster's own trainer rank 0 removes it when the recording begins; in a script the last
rank that has recorded removes it, see `profile_records`. Until then a request outlives the processes of a round.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainmaster.contract.wire.atomic_replace import replace

FILE = "record-steps"
MOST = 100  # steps, as in training.profile
_IDENTITY = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class Request:
    """A request that each rank fulfils by itself, once."""

    steps: int
    identity: str


def new_identity() -> str:
    """Return an identity that no other request has."""
    return os.urandom(6).hex()


def is_identity(word: str) -> bool:
    return _IDENTITY.fullmatch(word) is not None


def ask(folder: str | os.PathLike[str], steps: int, identity: str = "") -> None:
    """Request that `steps` steps are recorded, in place of an earlier request that has not begun.

    Raises OSError if the folder does not exist.
    """
    replace(Path(folder, FILE), f"{steps} {identity}".rstrip().encode() + b"\n")


def asked(folders: Iterable[str]) -> tuple[Path, int] | None:
    """Return the path of the first request in `folders` and its number of steps, or None if there is no request.

    The number is 0 if the file cannot be understood.
    """
    for folder in folders:
        path = os.path.join(folder, FILE)
        if os.path.exists(path):  # nearly never, and then it costs one look
            return Path(path), _steps(_words(path)[:1])
    return None


def read(path: str | os.PathLike[str]) -> Request | None:
    """Return the request in the file `path`; None if it is gone, or if it is none with an identity."""
    words = _words(path)
    steps = _steps(words[:1])
    return Request(steps, words[1]) if steps and len(words) == 2 and is_identity(words[1]) else None


def take_away(path: str | os.PathLike[str], identity: str) -> None:
    """Remove a request, but not another one that has taken its place in the meantime. Raises OSError."""
    taken = f"{os.fspath(path)}.{os.urandom(8).hex()}"
    try:
        os.rename(path, taken)
    except FileNotFoundError:
        return
    request = read(taken)
    if request is not None and request.identity != identity:
        with contextlib.suppress(FileExistsError):  # a third one is newer still
            os.link(taken, path)
    os.unlink(taken)


def _words(path: str | os.PathLike[str]) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(64).split()
    except (OSError, ValueError):
        return []


def _steps(words: list[str]) -> int:
    steps = int(words[0]) if words and words[0].isascii() and words[0].isdecimal() else 0
    return steps if 1 <= steps <= MOST else 0
