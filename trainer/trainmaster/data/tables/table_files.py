"""One column of a table in a file, which is read chunk by chunk: Parquet, or a stream of Arrow record batches.

The source `parquet` or `huggingface` and `trainmaster tokenize` read tables here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmaster.errors import DataError

ROWS = 1024  # that are decoded at once
_MARK = b"\xff\xff\xff\xff\0\0\0\0"  # the end of an Arrow stream


@dataclass(frozen=True)
class Place:
    """How refusals name what a person wrote: words before a path, and the name of the option with the column."""

    before: str = ""  # "data.path: "
    column: str = "--column"


@dataclass(frozen=True)
class Chunk:
    """Rows that are read together."""

    rows: int
    values: int | None = None  # integers in the lists of all rows, if that is known without reading them
    begin: int = 0  # byte in an Arrow stream


@dataclass
class Table:
    """A column of a file."""

    file: Path
    column: str
    place: Place
    name = ""  # of the format
    chunk_name = ""
    bytes: int = 0
    type: Any = None  # Arrow's type of the column
    chunks: list[Chunk] = field(default_factory=list)

    def batches(self, chunk: int) -> Iterator[Any]:
        """Yield the rows of a chunk as Arrow arrays. Raises DataError if the file is damaged or has changed."""
        where = f"{self.place.before}{self.file}, {self.chunk_name} {chunk}"
        rows = 0
        with self._reading(f", {self.chunk_name} {chunk}"):
            if os.stat(self.file).st_size != self.bytes:
                raise DataError(f"{where}: the file has changed while it was read; data must not change under a job")
            for array in self._read(chunk):
                rows += len(array)
                yield array
        if rows != self.chunks[chunk].rows:
            raise DataError(f"{where} holds {rows} rows, but its description tells of {self.chunks[chunk].rows}")

    def _read(self, chunk: int) -> Iterator[Any]:
        raise NotImplementedError

    @contextmanager
    def _reading(self, inside: str = "") -> Iterator[None]:
        """A context in which errors of Arrow become a DataError with the file and the place in it."""
        import pyarrow

        try:
            yield
        except FileNotFoundError:
            raise DataError(f"{self.place.before}{self.file}{inside} can't be read: the file is gone") from None
        except (pyarrow.ArrowException, OSError, EOFError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(f"{self.place.before}{self.file}{inside} can't be read as {self.name}: {reason}") from None

    def _set_type(self, schema: Any) -> None:
        """Raise DataError if the file has no such column."""
        if self.column not in schema.names:
            raise DataError(
                f"{self.place.before}{self.file} has no column {self.column!r}, only {', '.join(schema.names)}; "
                f"{self.place.column} names another one"
            )
        self.type = schema.field(self.column).type


class ParquetTable(Table):
    """A column of a Parquet file."""

    name, chunk_name = "Parquet", "row group"

    def open(self) -> None:
        """Read the file's description of its columns and row groups."""
        import pyarrow.parquet

        with self._reading(), pyarrow.parquet.ParquetFile(self.file) as file:
            self.bytes = os.stat(self.file).st_size
            self._set_type(file.schema_arrow)
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                self.chunks.append(Chunk(group.num_rows, self._values(group)))

    def _values(self, group: Any) -> int | None:
        columns = (group.column(i) for i in range(group.num_columns))
        ours = [each for each in columns if each.path_in_schema.split(".")[0] == self.column]
        if len(ours) != 1 or ours[0].statistics is None or not ours[0].statistics.has_null_count:
            return None
        # Parquet counts an empty or missing list as a missing value.
        return int(ours[0].num_values - ours[0].statistics.null_count)

    def _read(self, chunk: int) -> Iterator[Any]:
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(self.file) as file:
            for batch in file.iter_batches(ROWS, row_groups=[chunk], columns=[self.column], use_threads=False):
                yield batch.column(0)


class ArrowTable(Table):
    """A column of a file of Arrow record batches, in the format of streams. It is mapped into memory."""

    name, chunk_name = "Arrow", "record batch"

    def open(self) -> None:
        """Read the headers of all record batches."""
        import pyarrow.ipc

        with self._reading(), pyarrow.memory_map(str(self.file)) as memory:
            self.bytes = memory.size()
            schema = pyarrow.ipc.read_schema(memory)
            self._set_type(schema)
            while (begin := memory.tell()) < self.bytes - len(_MARK):
                message = pyarrow.ipc.read_message(memory)
                if message.type != "record batch":
                    raise DataError(
                        f"{self.place.before}{self.file} holds a {message.type}, which can't be read by parts; write "
                        f"its columns without dictionaries"
                    )
                column = pyarrow.ipc.read_record_batch(message, schema).column(self.column)
                values = len(column.flatten()) if is_list(column.type) else None
                self.chunks.append(Chunk(len(column), values, begin))
            memory.seek(begin)
            if memory.read() != _MARK:
                raise DataError(
                    f"{self.place.before}{self.file} ends after {len(self.chunks)} record batches without the mark of "
                    f"its end: it isn't complete"
                )

    def _read(self, chunk: int) -> Iterator[Any]:
        import pyarrow.ipc

        with pyarrow.memory_map(str(self.file)) as memory:
            schema = pyarrow.ipc.read_schema(memory)
            memory.seek(self.chunks[chunk].begin)
            batch = pyarrow.ipc.read_record_batch(pyarrow.ipc.read_message(memory), schema)
            yield batch.column(self.column)


_TABLES: dict[str, Callable[..., ParquetTable | ArrowTable]] = {".parquet": ParquetTable, ".arrow": ArrowTable}
SUFFIXES = frozenset(_TABLES)


def is_list(kind: Any) -> bool:
    """Return True if Arrow's type is one of lists."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def import_arrow() -> None:
    """Import pyarrow without its background thread: a process with several threads can't be forked safely.

    Arrow reads the variable only while it is imported, so the environment is left as it was. Raises ImportError.
    """
    variable = "JE_ARROW_MALLOC_CONF"
    given = os.environ.get(variable)
    os.environ.setdefault(variable, "background_thread:false")
    try:
        import pyarrow  # noqa: F401
    finally:
        if given is None:
            del os.environ[variable]


def open_table(file: Path, column: str, place: Place) -> Table:
    """Return a column of a `.parquet` or `.arrow` file. Raises DataError if it can't be read or has no such column."""
    try:
        import_arrow()
    except ImportError:
        raise DataError(f"{place.before}{file} needs pyarrow in the image: pip install pyarrow") from None
    table = _TABLES[file.suffix](file, column, place)
    table.open()
    return table


def check_text(table: Table, row: int, value: Any) -> str:
    """Return a value as text. Raises DataError with the row, counted from 0 in the file, if it is none."""
    if not isinstance(value, str):
        raise DataError(
            f"{table.place.before}{table.file}, row {row}: column {table.column!r} holds {value!r:.40}, which is no "
            f"text"
        )
    return value


def texts(table: Table) -> Iterator[str]:
    """Yield the texts of a table. Raises DataError for a row that has none."""
    row = 0
    for chunk in range(len(table.chunks)):
        for array in table.batches(chunk):
            for value in array.to_pylist():
                yield check_text(table, row, value)
                row += 1
