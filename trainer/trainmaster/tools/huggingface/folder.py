"""The folder that a command writes: empty before, and empty again if anything fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainmaster.errors import ConfigError


def check_empty(folder: Path) -> None:
    """Raise ConfigError unless `folder` is empty, or can be created."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; an empty or a new one is expected")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; an empty or a new folder is expected")
    if not folder.absolute().parent.is_dir():
        raise ConfigError(f"{folder}: there is no folder {folder.absolute().parent}")


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """A context that creates the folder for what its body writes. If the body fails, nothing of it stays."""
    existed = folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        yield
    except BaseException:
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if not existed:
            folder.rmdir()
        raise
