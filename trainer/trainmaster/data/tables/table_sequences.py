"""A column of tables as one long sequence of tokens: of texts, or of lists of token numbers.

Chunks are decoded when a window needs them, and the last ones are kept. Texts are encoded one by one when a window
needs them. Where each text ends in the sequence was counted before (`token_counts`).
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmaster.data.sequence import Sequence
from trainmaster.data.source_options import TableOptions
from trainmaster.data.tables.find_tables import parquet_files, saved_files
from trainmaster.data.tables.recently_read import RecentlyRead
from trainmaster.data.tables.table_files import Place, Table, check_text, is_list, open_table, texts
from trainmaster.data.tables.text_encoding import ByteEncoding, Encoding, read_tokenizer
from trainmaster.data.tables.token_counts import ends_of_parts
from trainmaster.errors import ConfigError, DataError

DECODED_BYTES = 2**28
"""What the chunks that are kept may take."""
ENCODED_BYTES = 2**27
"""What the tokens of texts that are kept may take: those of two shards of the default size, so that a rank encodes a
text about once per epoch."""
ENTRY_BYTES = 256  # about what an array takes without its content
TOGETHER = 256  # texts that are encoded at once for counting
PROBES = 64
PROBE_BYTES = 4096
FOOTER_BYTES = 2**16


def find(source: str, path: str, options: TableOptions) -> TableSequence:
    """Return the sequence of a column. Raises DataError, and ConfigError for options that don't fit the column."""
    files = parquet_files(path) if source == "parquet" else saved_files(path)
    place = Place("data.path: ", "data.options.column")
    tables = [open_table(file, options.column, place) for file in files]
    kinds = [_kind(table) for table in tables]
    for table, kind in zip(tables, kinds, strict=True):
        if kind != kinds[0]:
            raise DataError(
                f"data.path: {table.file}: column {table.column!r} holds {kind}, but {tables[0].file} has {kinds[0]} "
                f"there; all files must have the same"
            )
    if not any(chunk.rows for table in tables for chunk in table.chunks):
        raise DataError(f"data.path: {path} holds no rows")
    if kinds[0] == "texts":
        if options.tokenizer is not None:
            where = f"data.options.tokenizer: {options.tokenizer}"
            return TextColumn(
                path,
                tables,
                read_tokenizer(Path(options.tokenizer), options.separator, where, "data.options.separator"),
            )
        if options.separator is not None:
            raise ConfigError(
                "data.options.separator: needs data.options.tokenizer; without one a NUL byte ends a text"
            )
        return TextColumn(path, tables, ByteEncoding())
    for name in ("tokenizer", "separator"):
        if getattr(options, name) is not None:
            raise ConfigError(
                f"data.options.{name}: column {options.column!r} holds token numbers already; leave the option out"
            )
    return ListColumn(path, tables)


def _kind(table: Table) -> str:
    from pyarrow import types

    kind = table.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "texts"
    if is_list(kind) and types.is_integer(kind.value_type):
        return "lists of integers"
    raise DataError(
        f"data.path: {table.file}: column {table.column!r} holds {kind}; texts or lists of integers would be right"
    )


class TableSequence(Sequence):
    """The base class of both. Chunk i of all tables holds the rows up to `row_ends[i]`."""

    def __init__(self, path: str, tables: list[Table]) -> None:
        self._path, self._tables = path, tables
        self._chunks = [(table, number) for table in tables for number in range(len(table.chunks))]
        self._row_ends = [*itertools.accumulate(table.chunks[number].rows for table, number in self._chunks)]
        self._ends: NDArray[np.int64] | None = None
        self._lock = threading.Lock()  # samples are read ahead in another thread

    @property
    def path(self) -> str:
        return self._path

    @property
    def counted(self) -> bool:
        return self._ends is not None

    @property
    def size(self) -> int:
        assert self._ends is not None, "the tokens are not counted"
        return int(self._ends[-1])

    @cached_property
    def fingerprint(self) -> str:
        """Return a sha256 over what makes the tokens: the column, names, sizes, rows and a few probes of the files, and
        the tokenizer. It contains no times, so a copy counts as the same data."""
        digest = hashlib.sha256(f"{self._tables[0].column}\0{self._made_by}\n".encode())
        every = max(1, -(-len(self._tables) // PROBES))
        for number, table in enumerate(self._tables):
            rows = [chunk.rows for chunk in table.chunks]
            digest.update(f"{table.file.name}\0{table.bytes}\0{rows}\n".encode("utf-8", "surrogateescape"))
            probes = -(-PROBES // len(self._tables)) if number % every == 0 else 0
            for probe in self._probes(table, probes):
                digest.update(probe)
        return f"sha256:{digest.hexdigest()}"

    def _probes(self, table: Table, count: int) -> Iterator[bytes]:
        """Yield the last bytes of a file, where Parquet describes it, and `count` parts of the others."""
        try:
            with open(table.file, "rb", buffering=0) as file:
                file.seek(max(0, table.bytes - FOOTER_BYTES))
                yield file.read(FOOTER_BYTES)
                for probe in range(count):
                    file.seek(probe * table.bytes // count)
                    yield file.read(PROBE_BYTES)
        except OSError as error:
            raise DataError(f"data.path: {table.file} can't be read: {error.strerror}") from None

    @property
    def _key(self) -> str:
        """Return what names the file with the counts of these tokens."""
        return self.fingerprint.removeprefix("sha256:")[:32]

    @property
    def _made_by(self) -> str:
        raise NotImplementedError

    def _changed(self, table: Table, where: str) -> DataError:
        return DataError(
            f"data.path: {table.file}, {where} holds other tokens than when they were counted; data must not change "
            f"under a job"
        )


class TextColumn(TableSequence):
    """Texts, each with a separator after it."""

    def __init__(self, path: str, tables: list[Table], encoding: Encoding | ByteEncoding) -> None:
        super().__init__(path, tables)
        self._encoding = encoding
        self.unit, self.alphabet = encoding.unit, encoding.alphabet
        self._decoded: RecentlyRead[Any] = RecentlyRead(DECODED_BYTES, lambda column: int(column.nbytes))
        self._encoded: RecentlyRead[NDArray[Any]] = RecentlyRead(
            ENCODED_BYTES, lambda tokens: tokens.nbytes + ENTRY_BYTES
        )

    @property
    def dtype(self) -> str:
        return self._encoding.dtype.str

    @property
    def _made_by(self) -> str:
        return self._encoding.name

    def check(self, vocabulary: int) -> None:
        """Raise DataError if the tokenizer has a larger vocabulary."""
        made_with = self._encoding.vocabulary
        if isinstance(self._encoding, Encoding) and made_with > vocabulary:
            raise DataError(
                f"data.options.tokenizer: it has {made_with} tokens, but the model knows {vocabulary}; "
                f"model.options.vocabulary {made_with} would be right"
            )

    def count(self, folder: Path | None, beat: Callable[[], None]) -> None:
        self._ends = ends_of_parts(self._key, self._row_ends[-1], self._counts, folder, beat)

    def _counts(self) -> Iterator[list[int]]:
        for table in self._tables:
            rows = texts(table)
            while some := [*itertools.islice(rows, TOGETHER)]:
                yield [len(tokens) for tokens in self._encoding.encode_all(some)]

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes of the tokens [start, stop). Raises DataError for a file that is damaged or has changed."""
        assert self._ends is not None, "the tokens are not counted"
        first, last = (int(i) for i in np.searchsorted(self._ends, [start, stop - 1], "right"))
        begin = int(self._ends[first - 1]) if first else 0
        with self._lock:
            tokens = np.concatenate([self._encoded.get(row, self._encode) for row in range(first, last + 1)])
        return tokens[start - begin : stop - begin].tobytes()

    def _encode(self, row: int) -> NDArray[Any]:
        assert self._ends is not None
        chunk = bisect_right(self._row_ends, row)
        table, _ = self._chunks[chunk]
        column = self._decoded.get(chunk, self._decode)
        inside = row - (self._row_ends[chunk - 1] if chunk else 0)
        tokens = self._encoding.encode(check_text(table, self._row_in_file(chunk, inside), column[inside].as_py()))
        if len(tokens) != self._ends[row] - (self._ends[row - 1] if row else 0):
            raise self._changed(table, f"row {self._row_in_file(chunk, inside)}")
        return tokens

    def _decode(self, chunk: int) -> Any:
        import pyarrow

        table, number = self._chunks[chunk]
        return pyarrow.chunked_array(table.batches(number), type=table.type)

    def _row_in_file(self, chunk: int, inside: int) -> int:
        table, number = self._chunks[chunk]
        return sum(each.rows for each in table.chunks[:number]) + inside


class ListColumn(TableSequence):
    """Lists of token numbers, one after the other, with nothing between them. Parts are chunks."""

    def __init__(self, path: str, tables: list[Table]) -> None:
        super().__init__(path, tables)
        self._decoded: RecentlyRead[NDArray[Any]] = RecentlyRead(DECODED_BYTES, lambda values: values.nbytes)
        known = [table.chunks[number].values for table, number in self._chunks]
        if all(values is not None for values in known):
            self._ends = np.cumsum(np.array(known, np.int64))
            self._check_size()

    @property
    def dtype(self) -> str:
        return "<i8"

    @property
    def _made_by(self) -> str:
        return "lists"

    def check(self, vocabulary: int) -> None:
        """Raise DataError if the first or the last chunk has tokens that are not in a vocabulary of this size."""
        for chunk in {0, len(self._chunks) - 1}:
            with self._lock:
                values = self._decoded.get(chunk, self._decode)
            for number in (int(values.min()), int(values.max())) if len(values) else ():
                if not 0 <= number < vocabulary:
                    raise DataError(self.outside(number, vocabulary))

    def count(self, folder: Path | None, beat: Callable[[], None]) -> None:
        self._ends = ends_of_parts(self._key, len(self._chunks), self._counts, folder, beat)
        self._check_size()

    def _counts(self) -> Iterator[list[int]]:
        return ([len(self._decode(chunk))] for chunk in range(len(self._chunks)))

    def _check_size(self) -> None:
        if not self.size:
            raise DataError(f"data.path: {self._path}: the lists in column {self._tables[0].column!r} are all empty")

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes of the tokens [start, stop). Raises DataError for a file that is damaged or has changed."""
        assert self._ends is not None, "the tokens are not counted"
        parts = []
        chunk = int(np.searchsorted(self._ends, start, "right"))
        with self._lock:
            while start < stop:
                begin = int(self._ends[chunk - 1]) if chunk else 0
                end = min(stop, int(self._ends[chunk]))
                if start < end:
                    values = self._decoded.get(chunk, self._decode)
                    if len(values) != self._ends[chunk] - begin:
                        table, number = self._chunks[chunk]
                        raise self._changed(table, f"{table.chunk_name} {number}")
                    parts.append(values[start - begin : end - begin].astype(np.int64))
                start, chunk = end, chunk + 1
        return np.concatenate(parts).tobytes()

    def _decode(self, chunk: int) -> NDArray[Any]:
        table, number = self._chunks[chunk]
        parts = []
        for array in table.batches(number):
            values = array.flatten()
            if array.null_count or values.null_count:
                raise DataError(
                    f"data.path: {table.file}, {table.chunk_name} {number}: column {table.column!r} has a missing "
                    f"value (null); token numbers or empty lists would be right"
                )
            parts.append(values.to_numpy(zero_copy_only=False))
        return np.concatenate(parts) if len(parts) != 1 else parts[0]
