"""A request to record steps of a training that runs: a file in a folder.

Rank 0 looks for the file at each step and removes it when the recording begins. Until then a request outlives the
processes of a round. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from trainmaster.contract.wire.atomic_replace import replace

FILE = "record-steps"
MOST = 100  # steps, as in training.profile


def ask(folder: str | os.PathLike[str], steps: int) -> None:
    """Request that `steps` steps are recorded, in place of an earlier request that has not begun.

    Raises OSError if the folder does not exist.
    """
    replace(Path(folder, FILE), f"{steps}\n".encode())


def asked(folders: Iterable[str]) -> tuple[Path, int] | None:
    """Return the path of the first request in `folders` and its number of steps, or None if there is no request.

    The number is 0 if the file cannot be understood.
    """
    for folder in folders:
        path = os.path.join(folder, FILE)
        if os.path.exists(path):  # nearly never, and then it costs one look
            return Path(path), _steps(path)
    return None


def _steps(path: str) -> int:
    try:
        with open(path) as file:
            steps = int(file.read(32))
    except (OSError, ValueError):
        return 0
    return steps if 1 <= steps <= MOST else 0
