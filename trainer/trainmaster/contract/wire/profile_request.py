"""A request to record steps of a training that runs: a file in a folder where rank 0 looks for it at each step, and
which it removes as it begins. Until then a request outlives the processes of a round. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from trainmaster.contract.wire.temporary import replace

FILE = "record-steps"
MOST = 100  # steps, as in training.profile


def ask(folder: str | os.PathLike[str], steps: int) -> None:
    """Ask for `steps` steps to be recorded, and replace a request that nobody has begun with.

    Raises OSError without the folder.
    """
    replace(Path(folder, FILE), f"{steps}\n".encode())


def asked(folders: Iterable[str]) -> tuple[Path, int] | None:
    """Return the file of the first request in these folders, and for how many steps (0: it can't be understood).

    None without one.
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
