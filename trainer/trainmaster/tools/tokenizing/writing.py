"""A `.npy` file of token numbers made of documents, with a file that describes how it was made."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainmaster.contract.wire.atomic_replace import temporary
from trainmaster.data.tables.text_encoding import read_tokenizer
from trainmaster.data.token_files import about_path
from trainmaster.errors import ConfigError, DataError

TOGETHER = 256  # documents, on all cores
_HEADER = 128  # bytes: a multiple of 64, with room for any number of tokens


def write(documents: Iterable[str], out: Path, tokenizer_file: Path, separator: str | None) -> dict[str, Any]:
    """Write the tokens of all documents, with a separator after each. Return the content of the description file.

    Raises ConfigError and DataError, and leaves no files then.
    """
    if out.suffix != ".npy":
        raise ConfigError(f"{out}: a name that ends in .npy is expected")
    for path in (out, about_path(out)):
        if path.exists():
            raise ConfigError(f"{path} is there already; another name is expected")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.absolute().parent}")
    encoding = read_tokenizer(tokenizer_file, separator, f"--tokenizer {tokenizer_file}", "--separator")
    part = temporary(out)
    counts = {"documents": 0, "tokens": 0}
    try:
        with part.open("wb") as file:
            file.write(b" " * _HEADER)
            for group in _groups(documents):
                for numbers in encoding.encode_all(group):
                    file.write(numbers.tobytes())
                    counts["documents"] += 1
                    counts["tokens"] += len(numbers)
            if not counts["tokens"]:
                raise DataError("there are no documents")
            file.seek(0)
            file.write(_header(encoding.dtype, counts["tokens"]))
        about = {
            "tokenizer": encoding.digest,
            "vocabulary": encoding.vocabulary,
            "separator": {"token": encoding.end_name, "number": encoding.end},
            **counts,
        }
        about_path(out).write_text(json.dumps(about, indent=1) + "\n")
        part.replace(out)
    except BaseException:
        part.unlink(missing_ok=True)
        about_path(out).unlink(missing_ok=True)
        raise
    return about


def _groups(documents: Iterable[str]) -> Iterator[list[str]]:
    every = iter(documents)
    while group := [*itertools.islice(every, TOGETHER)]:
        yield group


def _header(dtype: np.dtype[Any], count: int) -> bytes:
    """Return the header of numpy's format (NEP 1), padded to the room that was left for it."""
    text = repr({"descr": dtype.str, "fortran_order": False, "shape": (count,)})
    room = _HEADER - 10
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.ljust(room - 1).encode() + b"\n"
