"""Rows of the parity table, for `test_parity.py`: called where ranks can be forked, by `Ranks.call`."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from tests.trainer.forks import import_compiler
from trainmaster.tools.parity import ROWS, STEPS, Outcome, Row, compared, main

FEW_STEPS = 4
"""The first and the second step, the one in which an epoch ends, and one after it. What is wrong with a strategy is
wrong in each of them; `test_mutations.py` shows that such a table finds it."""


class Kept(dict[Row, Outcome]):
    """What one process has trained. It is kept in a folder too, so that other workers of the run need not train it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir(exist_ok=True)
        self._folder = folder

    def __contains__(self, row: object) -> bool:
        if not super().__contains__(row) and isinstance(row, Row) and self._file(row).exists():
            super().__setitem__(row, pickle.loads(self._file(row).read_bytes()))  # noqa: S301 - our own file
        return super().__contains__(row)

    def __setitem__(self, row: Row, outcome: Outcome) -> None:
        super().__setitem__(row, outcome)
        partial = self._file(row).with_suffix(f".{os.getpid()}")
        partial.write_bytes(pickle.dumps(outcome))
        partial.replace(self._file(row))

    def _file(self, row: Row) -> Path:
        """Every field of the row counts."""
        return self._folder / hashlib.sha256(repr(row).encode()).hexdigest()


def row(name: str, kept: str) -> dict[str, Any]:
    """Train the row of this name, and return how it differs from one process. `kept`: a folder of all workers."""
    (found,) = (row for row in ROWS if str(row) == name)
    steps = steps_of(found)
    if found.training.get("compile"):
        import_compiler()
    with tempfile.TemporaryDirectory() as folder:
        return asdict(compared(found, Path(folder), references_of_all_workers(steps, kept), steps))


def command(arguments: list[str]) -> dict[str, Any]:
    """{code, printed} of the command with these arguments."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(arguments)
    return {"code": code, "printed": printed.getvalue()}


def steps_of(row: Row) -> int:
    """The steps that a row is trained for: all of them where what it is about takes several steps (islands meet, the
    loss has to fall, what isn't sent comes later)."""
    return STEPS if row.tolerance is not None or "island" in row.parallelism else FEW_STEPS


@cache
def references_of_all_workers(steps: int, kept: str) -> dict[Row, Outcome]:
    """The same as below, with what other workers have trained."""
    return Kept(Path(kept, f"references-{steps}"))


@cache
def references(steps: int) -> dict[Row, Outcome]:
    """Of rows of one process with so many steps: the same for all rows."""
    return {}
