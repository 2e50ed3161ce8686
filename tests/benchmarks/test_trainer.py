"""The benchmark of the trainer's speed: that it measures what it says, not how fast anything is."""

from __future__ import annotations

import math

import pytest

from benchmarks import trainer
from benchmarks.record import Case
from benchmarks.turns import Block, lower_bound
from tests.benchmarks import trainer_probe
from tests.benchmarks.trainer_probe import TINY
from tests.trainer.ranks import Ranks


@pytest.mark.processes
@pytest.mark.parametrize("row", list(trainer.ROWS))
def test_ours_and_hand_written_torch_train_the_same_and_take_turns(ranks: Ranks, row: str) -> None:
    samples = ranks.call(trainer_probe.compare, row)
    assert [each["system"] for each in samples] == ["trainmaster", "torch"]
    for each in samples:
        assert len(each["speed"]) == len(each["work"]) == 2 * 3
        assert all(sample > 0 for sample in each["speed"] + each["work"])


@pytest.mark.processes
def test_a_rank_is_a_process_of_its_own() -> None:
    world = trainer.World("torch", "ddp", TINY)
    try:
        assert 0 < world.warm() < math.inf
        speed, work = world.train()
        assert min(speed, work) > 0
    finally:
        world.end()


@pytest.mark.processes
def test_who_trains_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {"trainmaster": 3.0, "torch": 3.1}
    monkeypatch.setattr(trainer.World, "warm", lambda self: losses[self.system])
    with pytest.raises(SystemExit, match="don't train the same"):
        trainer.compare("ddp", ["trainmaster", "torch"], TINY)


def test_a_pipelines_loss_is_that_of_the_stage_that_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = object.__new__(trainer.World)
    monkeypatch.setattr(world, "_finished", lambda: [Block(1.0, 1.0, math.nan), Block(1.0, 1.0, 2.5)], raising=False)
    assert world.warm() == 2.5


@pytest.mark.parametrize(("other", "good"), [(100.0, True), (110.0, False)])
def test_a_row_is_good_beside_each_system_or_not_at_all(other: float, good: bool) -> None:
    def samples(system: str, speed: float) -> trainer.Samples:
        speeds = [speed * (1 + 0.001 * (i % 3)) for i in range(12)]
        return trainer.Samples(Case("ddp", system, "tokens/s", speeds), Case("ddp CPU", system, "", speeds))

    assert (
        trainer.judge([samples("trainmaster", 101.0), samples("torch", 90.0), samples("accelerate", other)], 12) is good
    )


def test_the_bound_is_below_the_mean_and_nearer_with_more_samples() -> None:
    few, many = [0.9, 1.1] * 6, [0.9, 1.1] * 30
    assert lower_bound(few) < lower_bound(many) < 1.0


def test_a_ratio_is_that_of_a_start_with_all_its_rounds() -> None:
    ours, other = Case("ddp", "a", "", [2.0, 8.0, 3.0, 3.0]), Case("ddp", "b", "", [1.0, 1.0, 3.0, 3.0])
    assert trainer.ratios_of(ours, other, 2) == pytest.approx([4.0, 1.0])


def test_too_few_starts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        trainer.read(["--starts", "9"])
    assert "--starts 9: a bound needs at least 10" in capsys.readouterr().err
