"""The parity table: each row trains as one process does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainmaster.parity import REFERENCE, ROWS, Outcome, Row, compare, main, select

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The whole table, made by the command in a process of its own."""
    file = tmp_path_factory.mktemp("parity") / "table.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "trainer")}
    command = [sys.executable, "-m", "trainmaster.parity", "--json", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert file.exists(), done.stderr
    return {(row["row"], row["ranks"], row["accumulation"]): row for row in json.loads(file.read_text())}


@pytest.mark.processes
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_strategy_trains_as_one_process_does(table: dict[tuple[Any, ...], dict[str, Any]], row: Row) -> None:
    found = table[row.name, row.ranks, row.accumulation]
    assert found["passed"], found


def outcome(losses: list[float], weight: float = 2.0) -> Outcome:
    return Outcome(losses, {"weight": np.array([1.0])}, {"weight": np.array([weight])})


@pytest.mark.parametrize(
    ("found", "passed"),
    [
        (outcome([4.0, 3.0]), True),
        (outcome([4.0, 3.0 * (1 + 5e-7)]), True),
        (outcome([4.0, 3.0 * (1 + 5e-6)]), False),
        (outcome([4.0, float("nan")]), False),
        (outcome([4.0, 3.0], weight=2.0 + 5e-6), True),
        (outcome([4.0, 3.0], weight=2.0 + 5e-5), False),
        (outcome([4.0, 3.0], weight=float("nan")), False),
    ],
)
def test_what_differs_beyond_the_tolerance_fails(found: Outcome, passed: bool) -> None:
    assert compare(ROWS[0], found, outcome([4.0, 3.0])).passed is passed


def test_another_start_fails_whatever_the_end() -> None:
    moved = Outcome([4.0], {"weight": np.array([1.5])}, {"weight": np.array([2.0])})
    assert not compare(ROWS[0], moved, outcome([4.0])).passed


def test_rows_are_chosen_by_a_part_of_their_name() -> None:
    assert [row.mesh for row in select("hsdp")] == [{"dp_replicate": 2, "dp_shard": 2}] * 2
    assert select("") == ROWS
    assert REFERENCE not in ROWS


def test_a_pattern_without_a_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "nonsense"]) == 2
    assert "no row holds 'nonsense'" in capsys.readouterr().err
