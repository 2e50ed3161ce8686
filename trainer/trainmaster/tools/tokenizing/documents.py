"""The documents of a source: text files, or the rows of a column in Parquet files, in a dataset that Hugging Face's
`datasets` saved to disk, or in lines of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainmaster.data.tables.table_files import SUFFIXES, Place, open_table, texts
from trainmaster.data.text_files import SKIPPED_FOLDERS, looks_like_text, translate, walk
from trainmaster.errors import DataError


def documents(source: Path, column: str, glob: str | None) -> Iterator[str]:
    """Yield the documents in the order of the files' names. Raises DataError."""
    if not source.exists():
        raise DataError(f"{source} doesn't exist; a file or a folder of texts is expected")
    for path in _files(source, glob):
        yield from READERS.get(path.suffix, _text)(path, column)


def _files(source: Path, glob: str | None) -> list[Path]:
    """Return the tables of a folder if there are any, else its text files."""
    if source.is_file():
        return [source]
    matches: Callable[[str], Any] = re.compile(translate(glob)).fullmatch if glob else lambda name: True
    found = sorted(source / name for name, _ in walk(str(source), SKIPPED_FOLDERS) if matches(name))
    tables = [path for path in found if path.suffix in READERS]
    files = tables or [path for path in found if looks_like_text(str(path))]
    if not files:
        what = f"file that matches {glob}" if glob else "text file, and no .parquet, .arrow or .jsonl one"
        raise DataError(f"{source} holds no {what}")
    return files


def _text(path: Path, column: str) -> Iterator[str]:
    try:
        yield path.read_bytes().decode("utf-8")  # `read_text` would change the ends of lines
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no UTF-8 text: {error.reason} at byte {error.start}") from None


def _table(path: Path, column: str) -> Iterator[str]:
    return texts(open_table(path, column, Place()))


def _json(path: Path, column: str) -> Iterator[str]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number} is no JSON: {error}") from None
            if not isinstance(row, dict) or column not in row:
                raise DataError(f"{path}, line {number} has no field {column!r}; --column names the one with the text")
            if not isinstance(row[column], str):
                raise DataError(f"{path}, line {number}: field {column!r} holds {row[column]!r:.40}, which is no text")
            yield row[column]


READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {**dict.fromkeys(SUFFIXES, _table), ".jsonl": _json}
