"""Tables for tests: Parquet files and saved datasets of many chunks, and jobs over them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from trainmaster.contract.config import TrainingConfig
from trainmaster.data.source_options import TableOptions
from trainmaster.data.tables import table_sequences
from trainmaster.data.tables.table_sequences import TableSequence

ROWS = 7  # of a chunk


def parquet(folder: Path, column: Any, name: str = "text", **how: Any) -> Path:
    """A folder of two files with many row groups each, and another column."""
    folder.mkdir(exist_ok=True)
    table = pyarrow.table({"id": list(range(len(column))), name: column})
    for part, begin in enumerate((0, len(table) // 2)):
        own = table.slice(begin, len(table) // 2)
        pyarrow.parquet.write_table(own, folder / f"part-{part}.parquet", row_group_size=ROWS, **how)
    return folder


def huggingface(folder: Path, column: Any, name: str = "text") -> Path:
    """A folder as `datasets.Dataset.save_to_disk` lays it out, whose files aren't in the order of their names."""
    folder.mkdir(exist_ok=True)
    table = pyarrow.table({"id": list(range(len(column))), name: column})
    names = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    for part, begin in enumerate((0, len(table) // 2)):
        with pyarrow.ipc.new_stream(str(folder / names[part]), table.schema) as stream:
            stream.write_table(table.slice(begin, len(table) // 2), max_chunksize=ROWS)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": each} for each in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


MAKERS: dict[str, Callable[..., Path]] = {"parquet": parquet, "huggingface": huggingface}


def config(source: str, path: Path, vocabulary: int = 300, batch: int = 4, **options: Any) -> TrainingConfig:
    model = {"context": 8, "width": 8, "heads": 2, "vocabulary": vocabulary}
    return TrainingConfig.model_validate(
        {
            "model": {"name": "llama", "options": model},
            "data": {"source": source, "path": str(path), "options": options},
            "steps": 10,
            "batch": {"global": batch},
        }
    )


def found(source: str, path: Path, **options: Any) -> TableSequence:
    return table_sequences.find(source, str(path), TableOptions(**options))


def counted(source: str, path: Path, **options: Any) -> TableSequence:
    sequence = found(source, path, **options)
    if not sequence.counted:
        sequence.count(None, lambda: None)
    return sequence


def numbers(sequence: TableSequence, start: int = 0, stop: int | None = None) -> list[int]:
    return np.frombuffer(sequence.read(start, sequence.size if stop is None else stop), sequence.dtype).tolist()
