"""Curves from metrics.jsonl: the newest round counts, what it replaced is kept apart, and the size is bounded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from trainmaster_operator.cli.report.metrics_file import POINTS, Metrics, continuity, read, thinned
from trainmaster_operator.cli.report.throughput import over_time


def written(folder: Path, lines: list[Any]) -> Metrics:
    path = folder / "metrics.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return read(path)


def line(step: int, round: int, loss: float | str, **more: Any) -> dict[str, Any]:
    return {"step": step, "round": round, "loss": loss, "tokens": 100, "seconds": 0.5, **more}


def test_a_run_without_metrics_has_empty_curves(tmp_path: Path) -> None:
    metrics = read(tmp_path / "metrics.jsonl")
    assert metrics.loss_curve() == over_time(metrics, []).curve == []
    assert metrics.mean_throughput() == 0.0


def test_a_step_that_ran_again_counts_with_its_newest_round(tmp_path: Path) -> None:
    metrics = written(
        tmp_path, [line(1, 1, 5.0), line(2, 1, 4.0), line(3, 1, 3.0), line(2, 2, 4.0), line(3, 2, 3.5), line(4, 2, 3.0)]
    )
    assert metrics.loss_curve() == [(1, 5.0), (2, 4.0), (3, 3.5), (4, 3.0)]
    assert metrics.replaced == [[(2, 4.0), (3, 3.0)]]
    assert metrics.rounds == [(1, 1), (2, 2)]
    assert (metrics.repeated, metrics.differences) == (2, 1)
    assert metrics.differing == [(3, 3.0, 3.5)]
    assert "1 had a different loss the second time, first step 3: 3.0, then 3.5" in continuity(metrics)


def test_evaluations_are_a_curve_of_their_own(tmp_path: Path) -> None:
    told = [{"step": step, "round": round, "evaluation_loss": loss} for step, round, loss in ((2, 1, 9.0), (2, 2, 8.0))]
    metrics = written(tmp_path, [line(1, 1, 5.0), line(2, 1, 4.0), told[0], line(2, 2, 4.0), told[1], line(3, 2, 3.0)])
    assert metrics.loss_curve() == [(1, 5.0), (2, 4.0), (3, 3.0)]
    assert metrics.evaluations == [(2, 8.0)]
    assert (metrics.repeated, metrics.differences) == (1, 0)


def test_steps_that_are_no_numbers_of_steps_are_malformed(tmp_path: Path) -> None:
    metrics = written(tmp_path, [line(1, 1, 5.0), line(10**20, 1, 4.0), line(-1, 1, 4.0), '{"step": 1e999}\n'])
    assert list(metrics.steps) == [1]
    assert metrics.malformed == 3


def test_equal_losses_bit_for_bit_are_said_to_be_so(tmp_path: Path) -> None:
    loss = 0.1 + 0.2
    metrics = written(tmp_path, [line(1, 1, loss), line(2, 1, "nan"), line(1, 2, loss), line(2, 2, "nan")])
    assert continuity(metrics) == "2 steps ran twice; each had bit for bit the same loss both times."


def test_the_last_bit_of_a_loss_makes_a_difference(tmp_path: Path) -> None:
    metrics = written(tmp_path, [line(1, 1, 0.3), line(1, 2, math.nextafter(0.3, 1))])
    assert metrics.differences == 1


def test_a_step_that_ran_three_times_is_compared_twice(tmp_path: Path) -> None:
    metrics = written(tmp_path, [line(1, round, 1.0) for round in (1, 2, 3)])
    assert metrics.repeated == 2
    assert metrics.loss_curve() == [(1, 1.0)]


def test_late_lines_of_a_fenced_world_and_torn_lines_are_left_out(tmp_path: Path) -> None:
    metrics = written(tmp_path, [line(1, 2, 5.0), line(2, 1, 9.0), line(2, 2, 4.0), '{"step": 3, "ro', "\n", "[]\n"])
    assert metrics.loss_curve() == [(1, 5.0), (2, 4.0)]
    assert metrics.malformed == 2


def test_throughput_is_tokens_over_seconds(tmp_path: Path) -> None:
    metrics = written(tmp_path, [line(1, 1, 5.0, seconds=0.5), line(2, 1, 4.0, seconds=0.25)])
    assert over_time(metrics, []).curve == [(0.0, 200.0), (0.5, 200.0), (0.75, 400.0)]
    assert math.isclose(metrics.mean_throughput(), 200 / 0.75)


def test_utilization_is_averaged_over_the_time_of_steps_that_tell_it(tmp_path: Path) -> None:
    metrics = written(
        tmp_path, [line(1, 1, 5.0, seconds=1.0, mfu=0.1), line(2, 1, 4.0, seconds=3.0, mfu=0.5), line(3, 1, 3.0)]
    )
    assert math.isclose(metrics.mean_utilization(), 0.4)
    assert written(tmp_path, [line(1, 1, 5.0)]).mean_utilization() == 0.0


def test_curves_keep_their_peaks_and_have_a_bounded_size() -> None:
    steps = range(100_000)
    values = [math.sin(step / 1000) for step in steps]
    values[12_345], values[54_321] = 50.0, -50.0
    points = thinned(zip(steps, values, strict=True))
    assert len(points) <= POINTS
    assert (12_345, 50.0) in points
    assert (54_321, -50.0) in points
    assert points == sorted(points)
