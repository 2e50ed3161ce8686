"""Check that two ranks on one device train as one process on it does: rows of the parity table, over gloo.

NCCL refuses two ranks on one device. Rows that need what gloo can't do with a device's tensors are left out.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.cuda import child
from benchmarks.cuda.programme import Numbers, Part, Setting
from benchmarks.cuda.programme import Row as TableRow
from benchmarks.cuda.speed import check_technique
from trainmaster.tools.parity import ROWS, Outcome, Row, compare, example, merged, reference, run, train

RANKS = 2
LENIENCE = 10.0
"""What the tolerances of exact rows are multiplied by on a device: its libraries choose another kernel, and so another
order of sums, for a matrix of another shape, and embeddings are added up in the order in which threads come. A wrong
scale or a missing exchange changes the first digits."""


def suits(row: Row) -> bool:
    """Whether two ranks on one device can train so. Stages of a pipeline can't: gloo sends from host memory alone."""
    return row.ranks == RANKS and not row.devices and row.parallelism.get("pp", 1) == 1


def trained(row: Row, device: str) -> Outcome:
    """What a row comes to, of all its ranks. To be called in a process of its own: it forks them."""
    with tempfile.TemporaryDirectory() as folder:
        return merged(run(row, example(Path(folder), row), partial(train, device=device)))


class Expected:
    """What one process on the device comes to. Each is trained once."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._trained = child.Once()

    def of(self, row: Row, limit_s: float) -> Outcome:
        """Raises WorkFailed."""
        alone = reference(row)
        work = partial(trained, alone, self._setting.device)
        outcome: Outcome = self._trained.run(alone, work, self._setting.log(str(alone)), limit_s)
        return outcome


def held(setting: Setting, expected: Expected, row: Row, limit_s: float) -> Numbers:
    check_technique(setting, row.training.get("precision", ""), bool(row.training.get("compile")))
    ends = time.monotonic() + limit_s
    alone = expected.of(row, limit_s)
    found = child.run(partial(trained, row, setting.device), setting.log(str(row)), ends - time.monotonic())
    lenience = 1.0 if setting.toy else LENIENCE
    comparison = compare(row, found, alone, lenience)
    return {
        "loss": comparison.loss,
        "tolerance": comparison.tolerance,
        "update": comparison.update,
        "update_tolerance": row.update * lenience,
        "exact": row.tolerance is None,
        "passed": comparison.passed,
        "losses": found.losses,
        "expected": alone.losses,
    }


def rows(setting: Setting) -> list[TableRow]:
    expected = Expected(setting)
    # Compiling takes longest and says least here.
    suiting = sorted((row for row in ROWS if suits(row)), key=lambda row: bool(row.training.get("compile")))
    return [TableRow(str(row), partial(held, setting, expected, row), 20.0, 90.0) for row in suiting]


def cells(numbers: Numbers) -> Sequence[str]:
    limit = f"{numbers['update_tolerance']:.0e}" if numbers["exact"] else "converges"
    return f"{numbers['loss']:.1e}", f"{numbers['tolerance']:.0e}", f"{numbers['update']:.1e}", limit


PART = Part("parity", ("loss", "tolerance", "update", "tolerance"), rows, cells)
