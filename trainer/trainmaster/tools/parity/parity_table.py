"""Rows compared with one process, as lines and as a page."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from trainmaster.contract.config import TrainingConfig
from trainmaster.parallel.blocks import compiling
from trainmaster.tools.parity.example import STEPS, example
from trainmaster.tools.parity.row_training import Outcome, merged, train
from trainmaster.tools.parity.row_world import run
from trainmaster.tools.parity.rows import (
    LOSS_TOLERANCE,
    MUON_UPDATE_TOLERANCE,
    ROWS,
    UPDATE_TOLERANCE,
    Row,
    reference,
    select,
)

CONVERGES = 0.95  # of how far the exact run's loss falls, for rows that aren't exact


@dataclass(frozen=True)
class Comparison:
    row: str  # str(Row)
    covers: str
    world: int  # ranks
    loss: float  # the largest relative difference of a step's loss
    update: float  # the largest difference of a parameter, relative to the largest update of that parameter
    passed: bool
    seconds: float = 0.0
    tolerance: float = LOSS_TOLERANCE  # of the loss


def compare(row: Row, outcome: Outcome, reference: Outcome, lenience: float = 1.0) -> Comparison:
    """Compare a row with its reference.

    `lenience` is the factor of the tolerances of exact rows, on devices whose sums have no fixed order.
    """
    exact = LOSS_TOLERANCE * lenience
    losses, expected = np.array(outcome.losses), np.array(reference.losses)
    loss = float(np.max(np.abs(losses - expected) / np.abs(expected)))
    update = max(
        float(np.max(np.abs(outcome.after[name] - after)) / np.max(np.abs(after - reference.before[name])))
        for name, after in reference.after.items()
    )
    same_start = all(np.array_equal(outcome.before[name], value) for name, value in reference.before.items())
    same_choices = outcome.choices == reference.choices
    if row.tolerance is None:
        passed = same_start and same_choices and loss <= exact and update <= row.update * lenience
    else:
        converges = losses[0] - losses[-1] >= CONVERGES * (expected[0] - expected[-1])
        passed = same_start and loss <= row.tolerance and bool(converges)  # NaN passes nothing
    return Comparison(str(row), row.covers, row.ranks, loss, update, passed, tolerance=row.tolerance or exact)


def compared(
    row: Row,
    folder: Path,
    references: dict[Row, Outcome],
    steps: int = STEPS,
    work: Callable[[TrainingConfig, Row, int], Outcome] = train,
) -> Comparison:
    """Train a row and what it is held against, and compare them.

    Data is written into `folder`. `references` holds what was trained for as many steps in one process; what is missing
    is added. `work`: what each rank of the row does. Raises RuntimeError if a rank died.
    """
    expected = reference(row)
    if expected not in references:
        references[expected] = merged(run(expected, example(folder, expected, steps)))
    began = time.monotonic()
    comparison = compare(row, merged(run(row, example(folder, row, steps), work)), references[expected])
    return replace(comparison, seconds=round(time.monotonic() - began, 2))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="trainmaster parity",
        description="Trains a small model in each parallel way and in one process, and compares. Exit code 0: all rows "
        "are within the tolerance. 1: some aren't.",
    )
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", default=[], help="rows whose name holds this; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="list the rows and train nothing")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table as JSON too")
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the table as a page too (docs/parity.md)")
    options = parser.parse_args(arguments)
    rows = select(options.only)
    if not rows:
        patterns = " or ".join(options.only)
        sys.stderr.write(
            f"trainmaster: --only {patterns}: no row has a name that contains this (there are {len(ROWS)} rows); "
            f"examples of names: {', '.join(_examples())}; --list lists all\n"
        )
        return 2
    if options.list:
        sys.stdout.write("".join(f"{row!s:62} {row.covers}\n" for row in rows))
        return 0
    missing = compiling.lacks("cpu")
    if missing:
        left_out = [row for row in rows if row.training.get("compile")]
        rows = [row for row in rows if row not in left_out]
        if left_out:
            sys.stderr.write(f"{len(left_out)} rows are left out: torch.compile needs {missing}\n")
    table = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        references: dict[Row, Outcome] = {}
        sys.stdout.write(f"{'row':62} world     loss   update  seconds\n")
        for row in rows:
            comparison = compared(row, Path(folder), references)
            table.append(comparison)
            sys.stdout.write(
                f"{row!s:62} {comparison.world:5} {comparison.loss:8.1e} {comparison.update:8.1e} "
                f"{comparison.seconds:8.1f}{'' if comparison.passed else '  BEYOND TOLERANCE'}\n"
            )
            sys.stdout.flush()
    failed = sum(not comparison.passed for comparison in table)
    sys.stdout.write(
        f"{len(table)} rows on the CPU in {time.monotonic() - began:.0f} s, {failed} beyond their tolerance (of exact "
        f"rows {LOSS_TOLERANCE:.0e} of the loss, {UPDATE_TOLERANCE:.0e} of a parameter's update)\n"
    )
    if options.json:
        options.json.write_text(json.dumps({"rows": [asdict(comparison) for comparison in table]}, indent=1) + "\n")
    if options.page:
        options.page.write_text(page(table))
    return 1 if failed else 0


def _examples() -> list[str]:
    """Return the first name of each kind of row. Names begin with the kind, such as P1 of `P1-replicate`."""
    return list({row.name.partition("-")[0]: row.name for row in reversed(ROWS)}.values())[::-1]


def page(table: Sequence[Comparison]) -> str:
    """Return the table as a page for people."""
    lines = [
        "# Does a parallel run train the same model?",
        "",
        f"Each row trains a small model for {STEPS} steps over several ranks, and is compared with one process without",
        "parallelism: the same weights, the same samples, and SGD with momentum. *Loss* is the largest relative",
        f"difference of a step's loss, which may be {LOSS_TOLERANCE:.0e}. *Update* is the largest difference of a",
        f"parameter at the end, relative to how far training has moved it, which may be {UPDATE_TOLERANCE:.0e}. In",
        "rows with experts, each token must also choose the same experts.",
        "",
        "Muon makes all directions of a matrix' gradient equally large, also those that are only rounding errors. So",
        f"with Muon an update may differ by {MUON_UPDATE_TOLERANCE:.0e}.",
        "",
        "Rows that compute in less than fp32, or compress the gradients that ranks exchange, have their own tolerance",
        "of the loss, and none of the update. Their loss must also fall by at least",
        f"{CONVERGES:.0%} of what the loss of the exact run falls by.",
        "",
        "Made by `trainmaster parity --page docs/parity.md`, on the CPU.",
        "",
        "| row | what only this row covers | ranks | loss | tolerance | update |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {c.row} | {c.covers} | {c.world} | {c.loss:.0e} | {c.tolerance:.0e} | {c.update:.0e} |" for c in table
    ]
    return "\n".join(lines) + "\n"
