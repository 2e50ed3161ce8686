"""How a global batch is shared: smaller micro-batches make more of them, never another batch."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.contract.config import BatchConfig, TrainingConfig


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 4096))
def test_a_smaller_micro_batch_leaves_the_global_batch_as_it_is(share: int, world: int, divisor: int) -> None:
    batch = BatchConfig.model_validate({"global": share * world})
    micro, accumulation = batch.accumulation(world, divisor)
    assert micro * accumulation * world == batch.global_
    assert 1 <= micro <= max(1, share // divisor)
    assert not any(share % n == 0 for n in range(micro + 1, share // divisor + 1)), "a larger one would do"


@pytest.mark.parametrize(
    ("micro", "divisor", "expected"),
    [(None, 1, (24, 1)), (None, 2, (12, 2)), (12, 2, (6, 4)), (8, 8, (1, 24)), (8, 64, (1, 24)), (3, 2, (1, 24))],
)
def test_the_micro_batch_of_the_config_is_what_is_made_smaller(
    micro: int | None, divisor: int, expected: tuple[int, int]
) -> None:
    assert BatchConfig.model_validate({"global": 48, "micro": micro}).accumulation(2, divisor) == expected


@pytest.mark.parametrize(
    ("rule", "ranks", "rate"),
    [("Constant", 8, 0.1), ("Linear", 8, 0.2), ("Linear", 3, 0.075), ("SquareRoot", 8, 0.1 * math.sqrt(2))],
)
def test_a_batch_that_scales_keeps_each_ranks_share_and_its_rule_the_learning_rate(
    rule: str, ranks: int, rate: float
) -> None:
    batch = {"global": 24, "micro": 3, "scaling": {"ranks": 4, "learningRate": rule}}
    config = TrainingConfig.model_validate(
        {"data": {"path": "/data"}, "steps": 9, "batch": batch, "optimizer": {"lr": 0.1}}
    )
    assert config.accumulation(ranks) == (3, 2)
    there = config.at(ranks)
    assert there.batch.global_ == 6 * ranks
    assert there.optimizer.lr == pytest.approx(rate, rel=1e-12)
    assert there.at(ranks) == there
    assert config.at(4).optimizer == config.optimizer


def test_a_batch_that_its_own_number_of_ranks_cant_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"global 10 is not divisible by scaling.ranks 4; 8 and 12 are"):
        BatchConfig.model_validate({"global": 10, "scaling": {"ranks": 4, "learningRate": "Linear"}})
    with pytest.raises(ValueError, match=r"global 3 is not divisible by scaling.ranks 4; 4 and 8 are"):
        BatchConfig.model_validate({"global": 3, "scaling": {"ranks": 4, "learningRate": "Linear"}})


def test_a_config_without_scaling_is_written_as_it_was_before_there_was_any() -> None:
    assert BatchConfig.model_validate({"global": 8}).model_dump() == {"global": 8, "micro": None}
    scaled = {"global": 8, "micro": None, "scaling": {"ranks": 4, "learningRate": "Linear"}}
    assert BatchConfig.model_validate(scaled).model_dump() == scaled
