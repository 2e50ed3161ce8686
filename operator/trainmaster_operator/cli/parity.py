"""`trainmaster parity`: the trainer's own proof of its strategies, in a process of its own, since it imports torch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trainmaster_operator.cli.refusal import Refusal


def parity(only: Sequence[str], json: Path | None, page: Path | None) -> int:
    """0 when all rows are within the tolerance, 1 when some aren't. Raises Refusal."""
    if importlib.util.find_spec("torch") is None:
        raise Refusal("parity needs the trainer: pip install 'trainmaster[train]'")
    for file in (json, page):
        if file is not None and not file.absolute().parent.is_dir():
            raise Refusal(f"{file}: there is no folder {file.absolute().parent}")
    arguments = [word for pattern in only for word in ("--only", pattern)]
    for name, file in (("--json", json), ("--page", page)):
        arguments += [name, str(file)] if file is not None else []
    # Many processes on few cores: a thread each.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "trainmaster.parity", *arguments], env=environment, check=False
    ).returncode
