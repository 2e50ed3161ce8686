"""What follows from the losses of evaluations."""

from __future__ import annotations

import json
import math

import pytest

from trainmaster.contract.config import EarlyStopConfig
from trainmaster.train.measures.early_stopping import Scores


def test_the_lowest_loss_is_the_best_and_the_first_of_equals_stays_it() -> None:
    scores = Scores("data")
    assert [scores.add(step, loss) for step, loss in ((2, 3.0), (4, 2.0), (6, 2.0), (8, 2.5))] == [1, 1, 0, 0]
    assert (scores.best, scores.best_step) == (2.0, 4)
    assert not scores.stops


@pytest.mark.parametrize(
    ("delta", "losses", "stops_at"),
    [
        (0.0, [3.0, 2.0, 2.5, 2.4, 1.0], 4),
        (0.0, [3.0, 2.5, 2.6, 2.4, 2.5, 2.4], 6),
        (0.5, [3.0, 2.7, 2.6, 2.0], 3),
        (0.5, [3.0, 2.7, 2.4, 2.0, 1.9], 5),
        (0.0, [math.nan, math.nan], 2),
    ],
)
def test_patience_ends_with_evaluations_without_an_improvement(
    delta: float, losses: list[float], stops_at: int
) -> None:
    scores = Scores("data", EarlyStopConfig(patience=2, minDelta=delta))
    for count, loss in enumerate(losses, start=1):
        scores.add(count, loss)
        assert scores.stops == (count == stops_at)
        if scores.stops:
            return
    pytest.fail("the run never stops")


@pytest.mark.parametrize("cut", range(5))
def test_scores_that_a_checkpoint_kept_go_on_as_if_nothing_had_been(cut: int) -> None:
    losses = [3.0, math.nan, 2.0, 2.1, 2.2]
    whole = Scores("data", EarlyStopConfig(patience=2), keep_best=True)
    before = Scores("data", EarlyStopConfig(patience=2), keep_best=True)
    for step, loss in enumerate(losses, start=1):
        whole.add(step, loss)
        if step <= cut:
            before.add(step, loss)
    after = Scores("data", EarlyStopConfig(patience=2), keep_best=True)
    after.load(json.loads(json.dumps(before.state())))
    for step in range(cut + 1, 6):
        after.add(step, losses[step - 1])
    assert after.state() == whole.state()
    assert after.stops


def test_losses_on_other_data_are_not_compared_with() -> None:
    old = Scores("old")
    old.add(2, 0.1)
    new = Scores("new")
    new.load(old.state())
    assert new.add(4, 1.0)


def test_only_a_best_checkpoint_that_is_asked_for_is_spared() -> None:
    spared, other = Scores("data", keep_best=True), Scores("data")
    for scores in (spared, other):
        scores.add(2, 1.0)
        scores.add(4, 2.0)
    assert spared.state()["keep"] == 2
    assert "keep" not in other.state()
