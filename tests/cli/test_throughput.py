"""The throughput of a run over time: steps in the order in which they ran, and pauses where ranks restarted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.runs import CLOSED
from trainmaster_operator.cli.report.metrics_file import POINTS, read
from trainmaster_operator.cli.report.throughput import Throughput, over_time
from trainmaster_operator.planning.facts.job_state import Recovery


def recovery(round: int, total_s: float | None, started_at: str = "") -> Recovery:
    return CLOSED.model_copy(update={"round": round, "totalSeconds": total_s, "startedAt": started_at})


def ran(folder: Path, rounds: Sequence[tuple[int, range]], recoveries: Sequence[Recovery]) -> Throughput:
    """Of a run of these steps in these rounds: each takes half a second, with 100 tokens."""
    path = folder / "metrics.jsonl"
    lines = [
        {"step": step, "round": number, "tokens": 100, "seconds": 0.5} for number, steps in rounds for step in steps
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return over_time(read(path), recoveries)


def test_a_recovery_is_a_pause_that_ends_where_the_first_step_of_its_round_begins(tmp_path: Path) -> None:
    found = ran(tmp_path, [(1, range(1, 3)), (2, range(2, 4))], [recovery(2, 2.0)])
    (pause,) = found.pauses
    assert (pause.round, pause.begin, pause.end) == (2, 1.0, 2.5)
    assert found.curve == [(0, 200), (0.5, 200), (1, 200), (1, 0), (2.5, 0), (2.5, 200), (3, 200), (3.5, 200)]


def test_a_step_that_was_run_again_took_its_time_twice(tmp_path: Path) -> None:
    assert ran(tmp_path, [(1, range(1, 5)), (2, range(1, 5))], []).curve[-1][0] == 4.0


def test_a_pause_of_unknown_length_is_a_drop_to_zero(tmp_path: Path) -> None:
    found = ran(tmp_path, [(1, range(1, 3)), (2, range(3, 5))], [recovery(2, None)])
    (pause,) = found.pauses
    assert pause.begin == pause.end == 1.0
    assert (1.0, 0.0) in found.curve


def test_a_recovery_that_came_to_no_step_belongs_to_the_pause_that_followed(tmp_path: Path) -> None:
    failures = [
        recovery(2, 3.0, "2026-11-21T15:00:00.000Z"),
        recovery(3, 1.5, "2026-11-21T15:00:02.000Z"),
    ]
    found = ran(tmp_path, [(1, range(1, 3)), (3, range(3, 5))], failures)
    (pause,) = found.pauses
    assert (pause.round, pause.end - pause.begin) == (3, pytest.approx(3.0))  # 3.5 s, of which the first step took 0.5


def test_the_curve_of_many_restarts_is_bounded_and_shows_the_last_one(tmp_path: Path) -> None:
    rounds = [(number, range(10 * number, 10 * number + 10)) for number in range(1, 1001)]
    found = ran(tmp_path, rounds, [recovery(1000, 60.0)])
    assert len(found.curve) <= POINTS
    assert any(rate == 0.0 and at >= 0.99 * found.pauses[-1].begin for at, rate in found.curve)


def test_a_quick_step_before_a_failure_does_not_stick_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    took = [*[0.5] * 400, 0.01, *[0.5] * 400]
    lines = [
        {"step": n, "round": 1 if n <= 401 else 2, "tokens": 100, "seconds": s} for n, s in enumerate(took, start=1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = over_time(read(path), []).curve
    assert max(rate for _, rate in curve) < 250
    assert curve[-1][0] == pytest.approx(sum(took))


def test_steps_without_a_time_are_no_throughput(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "round": 1, "tokens": 100}\n{"step": 2, "round": 1, "tokens": 100}\n')
    assert over_time(read(path), []).curve == []
