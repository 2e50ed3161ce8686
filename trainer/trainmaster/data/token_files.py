"""Files of token numbers as one long sequence: `.npy` arrays, or raw `.bin` files, whose dtype the job gives.

Standard library only. Only names and sizes are kept in memory; tokens are read when they are needed.
"""

from __future__ import annotations

import ast
import bisect
import hashlib
import json
import os
import struct
from array import array
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainmaster.data.sequence import Sequence
from trainmaster.data.source_options import TokenOptions
from trainmaster.errors import DataError

KINDS = {"uint16": ("<u2", "H"), "uint32": ("<u4", "I"), "int32": ("<i4", "i"), "int64": ("<i8", "q")}
"""The dtypes of tokens: in numpy's notation, and as the type code of `array`."""
PROBES = 64
PROBE_TOKENS = 2048
_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True)
class TokenFile:
    """One file of tokens."""

    path: str
    kind: str
    begin: int  # bytes before the first token
    count: int  # tokens


@dataclass(frozen=True)
class Tokens(Sequence):
    """A sequence of tokens in files. File i ends at `ends[i]` in the sequence."""

    given: str  # the path as the job has it
    files: list[TokenFile]
    ends: list[int]

    @property
    def path(self) -> str:
        return self.given

    @property
    def kind(self) -> str:
        return self.files[0].kind

    @property
    def dtype(self) -> str:
        """Return the dtype, in numpy's notation, of the bytes that `read` returns."""
        return KINDS[self.kind][0]

    @property
    def size(self) -> int:
        return self.ends[-1]

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes of the tokens [start, stop).

        Raises DataError if a file has become shorter, or was removed, since it was listed.
        """
        parts = []
        index = bisect.bisect_right(self.ends, start)
        while start < stop:
            file = self.files[index]
            first = self.ends[index] - file.count
            end = min(stop, self.ends[index])
            parts.append(self._read_file(file, start - first, end - start))
            start, index = end, index + 1
        return b"".join(parts)

    def _read_file(self, file: TokenFile, first: int, count: int) -> bytes:
        width = _width(self.kind)
        try:
            with open(file.path, "rb", buffering=0) as opened:
                data = os.pread(opened.fileno(), count * width, file.begin + first * width)
        except OSError as error:
            raise DataError(f"data.path: {file.path} can't be read: {error.strerror}") from None
        if len(data) != count * width:
            raise DataError(
                f"data.path: {file.path} has become shorter while the job ran; data must not change under a job"
            )
        return data

    @cached_property
    def fingerprint(self) -> str:
        """Return a sha256 over the dtype, all names and sizes, and a few probes of the content. It contains no
        times."""
        digest = hashlib.sha256(f"{self.kind}\n".encode())
        for file in self.files:
            digest.update(f"{Path(file.path).name}\0{file.count}\n".encode("utf-8", "surrogateescape"))
        for probe in self._probes():
            digest.update(probe)
        return f"sha256:{digest.hexdigest()}"

    def check(self, vocabulary: int) -> None:
        """Raise DataError if a few probes have tokens that are not in a vocabulary of this size.

        It is also raised if a description file of the tokens names a tokenizer with a larger vocabulary.
        """
        for file in self.files:
            made_with = _vocabulary(Path(file.path))
            if made_with > vocabulary:
                raise DataError(
                    f"data.path: {file.path} was made with a tokenizer of {made_with} tokens, but the model knows "
                    f"{vocabulary}; model.options.vocabulary {made_with} would be right"
                )
        for probe in self._probes():
            numbers = array(KINDS[self.kind][1], probe)
            for number in (min(numbers, default=0), max(numbers, default=0)):
                if not 0 <= number < vocabulary:
                    raise DataError(self.outside(number, vocabulary))

    def outside(self, number: int, vocabulary: int) -> str:
        """Return a sentence that says why a token cannot be right."""
        return super().outside(number, vocabulary) + (" (data.options.dtype may be wrong)" if number < 0 else "")

    def _probes(self) -> list[bytes]:
        starts = (probe * max(0, self.size - PROBE_TOKENS) // (PROBES - 1) for probe in range(PROBES))
        return [self.read(start, min(start + PROBE_TOKENS, self.size)) for start in starts]


def _width(kind: str) -> int:
    """Return the number of bytes of a token."""
    return array(KINDS[kind][1]).itemsize


def about_path(tokens: Path) -> Path:
    """Return the path of the file that describes how a file of tokens was made."""
    return tokens.with_suffix(".json")


def _vocabulary(tokens: Path) -> int:
    """Return the vocabulary of the tokenizer that made the tokens, or 0 if it is not known."""
    try:
        return int(json.loads(about_path(tokens).read_bytes())["vocabulary"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def find(path: str, options: TokenOptions) -> Tokens:
    """Return the tokens at `path`: a file, or a folder of files in the order of their names. Raises DataError."""
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if name.endswith((".npy", ".bin")) and name[0] != ".")
        paths = [os.path.join(path, name) for name in names]
        if not paths:
            raise DataError(f"data.path: {path} holds no .npy and no .bin file")
    elif os.path.exists(path):
        paths = [path]
    else:
        raise DataError(f"data.path: {path} doesn't exist; a file of tokens is expected (.npy or .bin), or a folder")
    files = [file for file in (_file(each, options) for each in paths) if file.count]
    if not files:
        raise DataError(f"data.path: {path} holds no tokens")
    for file in files:
        if file.kind != files[0].kind:
            raise DataError(
                f"data.path: {file.path} has dtype {file.kind}, but {files[0].path} has {files[0].kind}; all files of "
                f"a folder must have the same dtype"
            )
    ends, total = [], 0
    for file in files:
        total += file.count
        ends.append(total)
    return Tokens(path, files, ends)


def _file(path: str, options: TokenOptions) -> TokenFile:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not path.endswith(".npy"):
                count, rest = divmod(size, _width(options.dtype))
                if rest:
                    raise DataError(
                        f"data.path: {path} has {size} bytes, which is no multiple of the size of {options.dtype}"
                    )
                return TokenFile(path, options.dtype, 0, count)
            kind, count = _header(path, file.read(10), file.read)
            begin = file.tell()
    except OSError as error:
        raise DataError(f"data.path: {path} can't be read: {error.strerror}") from None
    if size != begin + count * _width(kind):
        raise DataError(f"data.path: {path} has {size} bytes, but its header tells of {count} numbers of {kind}")
    return TokenFile(path, kind, begin, count)


def _header(path: str, start: bytes, read) -> tuple[str, int]:  # type: ignore[no-untyped-def]
    """Return (dtype, number of elements) of a file in numpy's format (NEP 1), version 1 to 3.

    `read` continues after the first 10 bytes.
    """
    try:
        if start[:6] != _MAGIC:
            raise ValueError("it doesn't begin as an .npy file")
        if start[6] == 1:
            header = read(struct.unpack("<H", start[8:10])[0])
        else:
            header = read(struct.unpack("<I", start[8:10] + read(2))[0])
        about = ast.literal_eval(header.decode("utf-8"))
        kinds = [kind for kind, (dtype, _) in KINDS.items() if dtype == about["descr"]]
        (count,) = about["shape"]
    except (ValueError, SyntaxError, KeyError, TypeError, IndexError, struct.error) as error:
        raise DataError(f"data.path: {path} is no one-dimensional array in NumPy's format: {error}") from None
    if not kinds:
        raise DataError(f"data.path: {path} holds {about['descr']!r}; an array of {', '.join(KINDS)} is expected")
    return kinds[0], int(count)
