"""Which numbers of pods a job may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.world import job_spec, running, script_spec
from trainmaster_operator.api.validation import cross_field_rules
from trainmaster_operator.planning.rounds import allowed_sizes


def spec_of(replicas: int, batch: dict[str, Any], mesh: dict[str, int] | None = None, **workers: Any) -> Any:
    training = {"data": {"path": "x"}, "steps": 9, "batch": batch, "parallelism": mesh or {}}
    return job_spec(workers={"replicas": replicas, **workers}, training=training)


SCALED: dict[str, Any] = {"global": 24, "scaling": {"ranks": 4, "learningRate": "Linear"}}
"""Six sequences for each rank, however many there are."""


@pytest.mark.parametrize(
    ("spec", "legal", "wished"),
    [
        (spec_of(4, {"global": 24}), (1, 2, 3, 4, 6, 8, 12, 24), 4),
        (spec_of(5, {"global": 24}, min=2, max=10), (2, 3, 4, 6, 8), 4),
        (spec_of(12, {"global": 24}, min=1), (1, 2, 3, 4, 6, 8, 12, 24), 12),
        (spec_of(6, {"global": 24, "micro": 4}, min=1), (1, 2, 3, 6), 6),
        (spec_of(7, {"global": 24}, {"dpShard": 2}, min=1), (2, 4, 6, 8, 12, 24), 6),
        (spec_of(7, {"global": 24}, {"dpReplicate": 3}, min=1), (3, 6, 12, 24), 6),
        (spec_of(9, {"global": 24}, {"dpReplicate": 2, "dpShard": 2}, min=1), (4,), 4),
        (spec_of(5, {"global": 24}, min=1, ranksPerPod=4), (1, 2, 3, 6), 3),
        (spec_of(3, {"global": 24}, {"dpShard": 6}, min=1, ranksPerPod=4), (3, 6), 3),
        (spec_of(16, {"global": 6}, {"tp": 4}, min=1), (4, 8, 12, 24), 12),  # one sequence for each four ranks
        (spec_of(8, {"global": 8}, {"pp": 2, "tp": 2}, min=1), (4, 8, 16), 8),
        (spec_of(3, {"global": 4}, {"cp": 2}, min=1, ranksPerPod=2), (1, 2, 4), 2),
        (spec_of(7, SCALED, min=5, max=9), (5, 6, 7, 8, 9), 7),
        (spec_of(7, SCALED, {"dpShard": 3}, min=1), (3, 6), 6),
    ],
)
def test_legal_sizes_come_from_the_parallelism_and_the_batch(spec: Any, legal: tuple[int, ...], wished: int) -> None:
    assert allowed_sizes.legal(spec) == legal
    assert allowed_sizes.wished(spec) == wished


def test_a_script_may_have_any_size_within_its_bounds_and_none_but_its_own_without() -> None:
    assert allowed_sizes.legal(script_spec(4)) == (4,)
    template = script_spec(4).workers.template
    bounded = script_spec(workers={"replicas": 4, "min": 2, "max": 6, "template": template})
    assert ([*allowed_sizes.legal(bounded)], allowed_sizes.wished(bounded)) == ([2, 3, 4, 5, 6], 4)


@given(
    batch=st.integers(1, 500),
    micro=st.none() | st.integers(1, 8),
    ranks=st.integers(1, 4),
    shard=st.none() | st.integers(1, 6),
    tensor=st.none() | st.integers(1, 4),
    low=st.integers(1, 20),
    more=st.integers(0, 30),
)
def test_every_legal_size_is_a_job_and_no_other_is(
    batch: int, micro: int | None, ranks: int, shard: int | None, tensor: int | None, low: int, more: int
) -> None:
    mesh = {axis: n for axis, n in (("dpShard", shard), ("tp", tensor)) if n}
    given_batch = {"global": batch} | ({"micro": micro} if micro else {})

    def is_a_job(replicas: int) -> bool:
        try:
            spec_of(replicas, given_batch, mesh, ranksPerPod=ranks)
        except ValueError:
            return False
        return True

    expected = tuple(n for n in range(low, low + more + 1) if is_a_job(n))
    if not expected:
        return
    spec = spec_of(low + more, given_batch, mesh, ranksPerPod=ranks, min=low, max=low + more)
    assert allowed_sizes.legal(spec) == expected
    assert allowed_sizes.wished(spec) == expected[-1]


def test_of_a_hundred_thousand_numbers_of_pods_only_those_that_divide_the_batch_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[int] = []
    for module in (cross_field_rules, allowed_sizes):
        share = module.share_of_each_rank

        def counting(parallelism: Any, batch: Any, ranks: int, share: Any = share) -> Any:
            checked.append(ranks)
            return share(parallelism, batch, ranks)

        monkeypatch.setattr(module, "share_of_each_rank", counting)
    spec = spec_of(100_000, {"global": 6}, {"tp": 64}, min=1)
    assert allowed_sizes.legal(spec) == (64, 128, 192, 384)
    with pytest.raises(ValueError, match="no number of pods from 400 to 99999 is possible"):
        spec_of(99_999, {"global": 6}, {"tp": 64}, min=400)
    assert {*checked} == {64, 128, 192, 384, 99_999}


def test_the_sizes_of_a_script_take_no_memory_for_each_of_them() -> None:
    template = script_spec(4).workers.template
    spec = script_spec(workers={"replicas": 4, "min": 1, "max": 100_000, "template": template})
    assert allowed_sizes.legal(spec) == range(1, 100_001)


class Looked(Sequence[int]):
    """The numbers from 1 to 100,000, and how many of them were looked at."""

    def __init__(self) -> None:
        self.times = 0

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, at: Any) -> Any:
        found = range(1, 100_001)[at]
        self.times += len(found) if isinstance(at, slice) else 1
        return found


def test_a_pass_does_not_look_at_every_size_that_a_job_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Looked()
    monkeypatch.setattr(allowed_sizes, "_all_legal", lambda spec: sizes)
    template = script_spec(4).workers.template
    world = running(script_spec(workers={"replicas": 6, "min": 1, "max": 100_000, "template": template}))
    world.pod(0, phase="Failed", exit_code=1)
    world.settle()
    sizes.times = 0
    world.now += 400
    world.plan()
    assert 0 < sizes.times < 2_000
    assert allowed_sizes.explain_rounding(world.spec).endswith("they allow 6, or 7")
