"""Rows of the parity table, for `test_parity.py`: called where ranks can be forked, by `Ranks.call`."""

from __future__ import annotations

import contextlib
import io
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


def row(name: str) -> dict[str, Any]:
    """Train the row of this name, and return how it differs from one process."""
    (found,) = (row for row in ROWS if str(row) == name)
    steps = steps_of(found)
    if found.training.get("compile"):
        import_compiler()
    with tempfile.TemporaryDirectory() as folder:
        return asdict(compared(found, Path(folder), references(steps), steps))


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
def references(steps: int) -> dict[Row, Outcome]:
    """Of rows of one process with so many steps: the same for all rows."""
    return {}
