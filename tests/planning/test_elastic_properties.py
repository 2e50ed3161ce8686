"""Properties of spares and sizes: of the order of ranks by itself, and of jobs to which anything happens."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.planning.model import Model
from tests.planning.test_properties import Job
from tests.planning.world import World, job_spec, running
from trainmaster_operator.api.compact_lists import pack_ranges, unpack_counts, unpack_ranges
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.view import look
from trainmaster_operator.planning.rounds import allowed_sizes, open_round
from trainmaster_operator.planning.rounds.directives import directives


def spec_of(replicas: int, spares: int, low: int | None, **recovery: Any) -> JobSpec:
    workers = {"replicas": replicas, "spares": spares, **({"min": min(low, replicas)} if low else {})}
    return job_spec(workers=workers, checkpoint={"directory": "/checkpoints"}, recovery=recovery)


@given(
    size=st.integers(1, 6),
    spares=st.integers(0, 3),
    wish=st.integers(1, 6),
    low=st.none() | st.integers(1, 6),
    shuffle=st.randoms(use_true_random=False),
    away=st.sets(st.integers(0, 8)),
    gone=st.sets(st.integers(0, 8), max_size=2),
    waited=st.sampled_from([0.0, 100.0]),
)
@settings(max_examples=300, deadline=None)
def test_the_order_of_a_round_is_of_slots_that_are_there_and_whoever_stays_keeps_its_rank(
    size: int, spares: int, wish: int, low: int | None, shuffle: Any, away: set[int], gone: set[int], waited: float
) -> None:
    world: World = running(spec_of(size, spares, low))
    slots = list(world.slots)
    before = shuffle.sample(slots, size)
    world.status = world.status.model_copy(update={"roundMap": pack_ranges(before), "roundStore": ""})
    world.spec = spec_of(wish, spares, low)
    world.now += waited
    for slot in slots:
        world.agent(slot, joined=slot not in away, silent_s=0.0)
    view = look(world.spec, world.status, world.observed(), world.now)
    there = {slot for slot in slots if slot not in away and slot not in gone}
    order = open_round.next_order(view, tuple(sorted(gone)))
    possible = [n for n in allowed_sizes.openable(view, waited) if n <= len(there)]
    assert order is None if not possible else order is not None and len(order) == possible[0]
    if order is None:
        return
    assert len(set(order)) == len(order)
    assert set(order) <= there
    if len(order) == size:
        stayed = [was in there and was < allowed_sizes.slots_for(view, size) for was in before]
        assert all(now == was for now, was, stays in zip(order, before, stayed, strict=True) if stays)
    else:
        assert list(order) == sorted(order)
        assert len(order) in allowed_sizes.legal(world.spec)


class ElasticJob(Job):
    """The rules of `Job` for a job with spares whose size changes."""

    def made(self, slots: int, script: bool, recovery: dict[str, Any]) -> Model:
        self.recovery = recovery
        self.spares, self.low = recovery["budget"]["full"], (1 if script else None)
        return Model(spec_of(slots, self.spares, self.low, **recovery))

    @rule(replicas=st.integers(1, 5))
    def somebody_asks_for_another_size(self, replicas: int) -> None:
        self.edit(replicas, self.spares)

    @rule(spares=st.integers(0, 2))
    def somebody_asks_for_other_spares(self, spares: int) -> None:
        self.edit(self.model.spec.workers.replicas, spares)

    def edit(self, replicas: int, spares: int) -> None:
        suspend = self.model.spec.suspend
        self.spares = spares
        spec = spec_of(replicas, spares, self.low, **self.recovery)
        self.model.spec = spec.model_copy(update={"suspend": suspend})

    @invariant()
    def each_failure_is_counted_once(self) -> None:
        if hasattr(self, "model"):
            counted = self.model.status.restarts
            assert counted.inPlace + counted.pod + counted.full + counted.shrink <= self.model.faults

    @invariant()
    def ranks_are_of_members_each_of_one(self) -> None:
        if not hasattr(self, "model") or not self.model.status.incarnations:
            return
        status = self.model.status
        members, slots = unpack_ranges(status.roundMap), len(unpack_counts(status.incarnations))
        assert len(set(members)) == len(members)
        assert all(slot < slots for slot in members)
        if not status.roundStore or status.phase.finished:
            return
        assert status.workers.replicas == len(members)
        told = map(directives(self.model.spec, status, self.model.observed()), range(slots))
        ranks = [d.assignment.first_rank for d in told if d.assignment is not None]
        assert ranks == [] or sorted(ranks) == list(range(len(members)))


TestElasticJob = ElasticJob.TestCase
TestElasticJob.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
