"""How a global batch is shared: smaller micro-batches make more of them, never another batch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.contract.config import BatchConfig


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
