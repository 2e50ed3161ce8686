"""A folder of text files as one long text: the files in the order of their names, with a NUL byte between two files.

Standard library only. Only names and sizes are kept in memory; bytes are read when they are needed.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from trainmaster.data.sequence import Sequence
from trainmaster.data.source_options import TextOptions
from trainmaster.errors import DataError

STDLIB = "@stdlib"
SEPARATOR = b"\0"
PROBES = 64
PROBE_BYTES = 4096
CHUNK_BYTES = 2**20
SKIPPED_FOLDERS = {"__pycache__"}
SKIPPED_IN_STDLIB = SKIPPED_FOLDERS | {"site-packages", "dist-packages", "test", "tests", "idle_test"}


@dataclass(frozen=True)
class Text(Sequence):
    """The text of a folder. `names` are relative to `folder`; file i, with its separator, ends at `ends[i]` in the long
    text."""

    folder: str
    names: list[str]
    ends: list[int]

    unit = "bytes"
    alphabet: int | None = 256

    @property
    def path(self) -> str:
        return self.folder

    @property
    def dtype(self) -> str:
        return "u1"

    def check(self, vocabulary: int) -> None:
        """Raise DataError if a few probes of the text have bytes that are not in a vocabulary of this size."""
        highest = max(max(probe, default=0) for probe in self._probes()) if vocabulary < 256 else 0
        if highest >= vocabulary:
            raise DataError(
                f"data.path: {self.folder} holds byte {highest}, but the model knows {vocabulary}; "
                f"model.options.vocabulary 256 would be right"
            )

    @property
    def size(self) -> int:
        """Return the number of bytes of the long text, which has no separator after its last file."""
        return self.ends[-1] - len(SEPARATOR)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of the long text.

        Raises DataError if a file has become shorter, or was removed, since it was listed.
        """
        parts = []
        index = bisect.bisect_right(self.ends, start)
        while start < stop:
            first = self.ends[index - 1] if index else 0
            end = self.ends[index] - len(SEPARATOR)
            if start < end:
                parts.append(self._read_file(index, start - first, min(stop, end) - start))
            if stop > end:
                parts.append(SEPARATOR)
            start = self.ends[index]
            index += 1
        return b"".join(parts)

    def _read_file(self, index: int, offset: int, size: int) -> bytes:
        path = os.path.join(self.folder, self.names[index])
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise DataError(f"data.path: {path} can't be read: {error.strerror}") from None
        try:
            data = os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)
        if len(data) != size:
            raise DataError(f"data.path: {path} has become shorter while the job ran; data must not change under a job")
        return data

    @cached_property
    def fingerprint(self) -> str:
        """Return a sha256 over all names, all sizes, and a few probes of the content.

        It does not contain times, so a copy counts as the same data.
        """
        digest = hashlib.sha256()
        for name, end in zip(self.names, self.ends, strict=True):
            digest.update(f"{name}\0{end}\n".encode("utf-8", "surrogateescape"))
        for probe in self._probes():
            digest.update(probe)
        return f"sha256:{digest.hexdigest()}"

    def _probes(self, probe_bytes: int = PROBE_BYTES) -> Iterator[bytes]:
        starts = (probe * max(0, self.size - probe_bytes) // (PROBES - 1) for probe in range(PROBES))
        return self._parts(starts, probe_bytes)

    def _parts(self, starts: Iterable[int], size: int) -> Iterator[bytes]:
        return (self.read(start, min(start + size, self.size)) for start in starts)

    def unigram_entropy(self, at_most: int | None = None) -> float:
        """Return the entropy of the byte frequencies, in nats per byte.

        It reads the whole text, or, if the text has more than `at_most` bytes, evenly spread parts with `at_most` bytes
        in all.
        """
        if at_most is not None and self.size > at_most:
            parts = self._probes(at_most // PROBES)
        else:
            parts = self._parts(range(0, self.size, CHUNK_BYTES), CHUNK_BYTES)
        counts: Counter[int] = Counter()
        for part in parts:
            counts.update(part)
        total = counts.total()
        return -sum(n / total * math.log(n / total) for n in counts.values())


def find(path: str, options: TextOptions) -> Text:
    """Return the text at `path`. Raises DataError if there is no such folder, or no file in it."""
    stdlib = path == STDLIB
    folder = sysconfig.get_paths()["stdlib"] if stdlib else path
    if not os.path.isdir(folder):
        what = "is not a folder" if os.path.exists(folder) else "doesn't exist"
        raise DataError(f"data.path: {folder} {what}; a folder of text files is expected, or {STDLIB}")
    pattern = options.glob or ("**/*.py" if stdlib else None)
    matches = re.compile(translate(pattern)).fullmatch if pattern else None
    found = []
    for name, size in walk(folder, SKIPPED_IN_STDLIB if stdlib else SKIPPED_FOLDERS):
        if matches(name) if matches else looks_like_text(os.path.join(folder, name)):
            found.append((name, size))
    if not found:
        which = f"file that matches {pattern}" if pattern else "text file"
        raise DataError(f"data.path: {folder} holds no {which} that isn't empty")
    found.sort()
    ends = itertools.accumulate(size + len(SEPARATOR) for _, size in found)
    return Text(folder, [name for name, _ in found], list(ends))


def walk(folder: str, skipped: set[str], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield (path relative to the folder, size) of all regular files that have content and are not hidden.

    Links to files are followed, because Kubernetes mounts ConfigMaps as links; links to folders are not, because they
    may form a cycle. Raises DataError if a folder cannot be listed.
    """
    try:
        entries = os.scandir(os.path.join(folder, prefix))
    except OSError as error:
        raise DataError(f"data.path: {os.path.join(folder, prefix)} can't be listed: {error.strerror}") from None
    with entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in skipped:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from walk(folder, skipped, f"{prefix}{entry.name}/")
            elif entry.is_file() and (size := entry.stat().st_size):
                yield prefix + entry.name, size


def looks_like_text(path: str) -> bool:
    """Return True if the first KiB has no NUL byte."""
    with open(path, "rb") as file:
        return b"\0" not in file.read(1024)


def translate(glob: str) -> str:
    """Return a regular expression for a glob over paths: * and ? stay within a folder, ** crosses folders."""
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(tokens.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*\*|\*|\?)", glob))
