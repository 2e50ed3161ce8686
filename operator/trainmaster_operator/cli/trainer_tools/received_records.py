"""What a pod sends of the records of its ranks, and what is accepted of it.

Whoever can write a job's script decides what its pods send. So a pod chooses neither folders nor types of files, only
names of its own ranks' records in a folder that was made for it, and all pods of a job share one limit on their bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from trainmaster.contract.wire import profile_records
from trainmaster_operator.cli.refusal import Refusal, why

MOST_BYTES = 4 << 30
_HEADER = 1 << 16  # bytes
_FILES = 100  # of a pod
_NAME = re.compile(r"rank-(\d{5,9})\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}", re.ASCII)
_WORDS = 300  # characters


class Strange(Refusal):
    """A pod has sent what no agent of ours sends."""


@dataclass
class Allowance:
    """The bytes that the pods of a job may still send."""

    left: int = MOST_BYTES

    def take(self, size: int) -> None:
        """Raise Refusal if nothing is left."""
        self.left -= size
        if self.left < 0:
            raise Refusal(
                f"the job's records have more than {MOST_BYTES >> 30} GiB; ask for fewer steps, since all ranks record"
            )


@dataclass
class Received:
    """One pod's answer, while it comes. `folder`: an empty one for its files."""

    pod: str
    ranks: Collection[int]
    folder: Path
    allowance: Allowance
    waiting: bool = True
    """Ranks of the pod have not recorded yet."""
    states: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By rank: its state, and why."""
    _begun: bytes = b""
    _header: bool = False
    _files: list[tuple[str, int]] = field(default_factory=list)
    _left: int = 0
    _open: BinaryIO | None = None

    def feed(self, data: bytes) -> None:
        """Take the next piece. Raise Strange, or Refusal if it is too much or cannot be written."""
        try:
            if not self._header:
                self._begun += data
                line, end, data = self._begun.partition(b"\n")
                if len(line) > _HEADER:
                    raise self._strange("a first line without an end")
                if not end:
                    return
                self._read_header(line)
                self._next()
            while data:
                if self._open is None:
                    raise self._strange("more than the files that it has announced")
                piece = data[: self._left]
                self._open.write(piece)
                self._left -= len(piece)
                data = data[len(piece) :]
                if not self._left:
                    self._next()
        except OSError as error:
            raise Refusal(f"{self.folder}: cannot be written: {why(error)}") from None

    def end(self) -> None:
        """Note that the pod has sent all. Raise Strange if it has not."""
        complete = self._header and self._open is None
        self.close()
        if not complete:
            raise self._strange("only a part of its records")

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _next(self) -> None:
        """Go on to the next file that has bytes to come."""
        self.close()
        while self._files and self._open is None:
            name, self._left = self._files.pop(0)
            self._open = open(self.folder / name, "xb")  # noqa: SIM115  it is open until its last byte has come
            if not self._left:
                self.close()

    def _read_header(self, line: bytes) -> None:
        self._header = True
        try:
            told = json.loads(line)
            self.waiting = told["waiting"] is True
            self._files = [self._checked(name, size) for name, size in told["files"]]
            for rank, mark in told["marks"].items():
                if int(rank) in self.ranks:
                    self.states[int(rank)] = (printable(mark["state"]), printable(mark["words"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._strange("a first line that cannot be read") from None
        if len(self._files) > _FILES or len({name for name, _ in self._files}) < len(self._files):
            raise self._strange("too many files")
        self.allowance.take(sum(size for _, size in self._files))

    def _checked(self, name: Any, size: Any) -> tuple[str, int]:
        match = _NAME.fullmatch(name) if isinstance(name, str) else None
        if match is None or int(match[1]) not in self.ranks or profile_records.place_of(name, "") is None:
            raise self._strange(f"a file {printable(name)!r}, which is no record of its ranks")
        if type(size) is not int or size < 0:
            raise self._strange("a file without a size")
        return name, size

    def _strange(self, what: str) -> Strange:
        return Strange(f"{self.pod}: sent {what}; nothing of it is kept")


def printable(words: Any) -> str:
    """Return words of a pod as one short line without control characters."""
    return "".join(c if c.isprintable() else " " for c in str(words)[:_WORDS]).strip()
