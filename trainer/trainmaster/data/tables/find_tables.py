"""The files of a table: all Parquet files below a folder, or those of a dataset that `datasets` saved to disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trainmaster.data.text_files import SKIPPED_FOLDERS, walk
from trainmaster.errors import DataError


def parquet_files(path: str) -> list[Path]:
    """Return the file, or the files of the folder in the order of their names. Raises DataError."""
    if os.path.isfile(path):
        if not path.endswith(".parquet"):
            raise DataError(f"data.path: {path} is no .parquet file")
        return [Path(path)]
    if not os.path.isdir(path):
        raise DataError(f"data.path: {path} doesn't exist; a .parquet file is expected, or a folder of them")
    files = sorted(Path(path, name) for name, _ in walk(path, SKIPPED_FOLDERS) if name.endswith(".parquet"))
    if not files:
        raise DataError(f"data.path: {path} holds no .parquet file")
    return files


def saved_files(path: str) -> list[Path]:
    """Return the files of a dataset in its own order. Raises DataError if `path` is no such folder."""
    splits = _described(Path(path, "dataset_dict.json"))
    if splits is not None:
        names = [str(name) for name in splits.get("splits") or ()]
        right = " or ".join(str(Path(path, name)) for name in names)
        raise DataError(f"data.path: {path} holds several datasets ({', '.join(names)}); {right} would be right")
    state = _described(Path(path, "state.json"))
    if state is None:
        raise DataError(
            f"data.path: {path} holds no state.json; a folder is expected that `datasets` wrote with save_to_disk"
        )
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise DataError(
            f"data.path: {path} is a selection of the rows in its files; call flatten_indices() before save_to_disk"
        )
    try:
        files = [Path(path, str(each["filename"])) for each in state["_data_files"]]
    except (KeyError, TypeError):
        raise DataError(f"data.path: {path}/state.json doesn't say which files the dataset has (_data_files)") from None
    for file in files:
        if file.suffix != ".arrow" or not file.is_file():
            raise DataError(f"data.path: {file} is one of the dataset's files by its state.json, but isn't there")
    return files


def _described(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file, or None if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"data.path: {path} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"data.path: {path} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"data.path: {path} is no JSON object")
    return content
