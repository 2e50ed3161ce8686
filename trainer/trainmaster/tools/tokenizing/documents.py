"""The documents of a source: text files, or the rows of a column in Parquet files, in a dataset that Hugging Face's
`datasets` saved to disk, or in lines of JSON; and the token that ends each of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainmaster.data.text_files import SKIPPED_FOLDERS, looks_like_text, translate, walk
from trainmaster.errors import ConfigError, DataError

ROWS = 1024  # of a table that are in memory at once
SEPARATORS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
"""Tokens that mark the end of a text in common tokenizers."""


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
        yield path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no UTF-8 text: {error.reason} at byte {error.start}") from None


def _parquet(path: Path, column: str) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _check(path, column, file.schema_arrow)
            for batch in file.iter_batches(ROWS, columns=[column]):
                yield from _strings(path, column, batch.column(0).to_pylist())
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} can't be read as Parquet: {_line(error)}") from None


def _arrow(path: Path, column: str) -> Iterator[str]:
    import pyarrow
    import pyarrow.ipc

    try:
        with pyarrow.memory_map(str(path)) as memory, pyarrow.ipc.open_stream(memory) as stream:
            _check(path, column, stream.schema)
            for batch in stream:
                yield from _strings(path, column, batch.column(column).to_pylist())
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} can't be read as Arrow: {_line(error)}") from None


def _json(path: Path, column: str) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number} is no JSON: {error}") from None
            if not isinstance(row, dict) or column not in row:
                raise DataError(f"{path}, line {number} has no field {column!r}; --column names the one with the text")
            yield from _strings(path, column, [row[column]])


READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {".parquet": _parquet, ".arrow": _arrow, ".jsonl": _json}


def _check(path: Path, column: str, schema: Any) -> None:
    if column not in schema.names:
        raise DataError(f"{path} has no column {column!r}, only {', '.join(schema.names)}; --column names another one")


def _strings(path: Path, column: str, values: list[Any]) -> Iterator[str]:
    for value in values:
        if not isinstance(value, str):
            raise DataError(f"{path}: column {column!r} holds {value!r:.40}, which is no text")
        yield value


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]


def find_separator(tokenizer: Any, path: Path, wanted: str | None) -> tuple[int, str]:
    """Return (number, token) of the separator. Raises ConfigError if the tokenizer does not have it."""
    for token in (wanted,) if wanted is not None else SEPARATORS:
        number = tokenizer.token_to_id(token)
        if number is not None:
            return number, token
    tried = repr(wanted) if wanted is not None else ", ".join(SEPARATORS)
    raise ConfigError(f"--tokenizer {path} has no token {tried}; --separator names the one that ends a document")
