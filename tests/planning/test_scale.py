"""Ten thousand slots: a small status, and work that grows with the number of slots only."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from tests.planning.world import World, job_spec, running, store, verdict
from trainmaster_operator.api.compact_lists import pack_counts
from trainmaster_operator.planning.facts.observation import Refusal
from trainmaster_operator.planning.plan import plan
from trainmaster_operator.planning.rounds.directives import directive


def large(slots: int) -> World:
    return running(job_spec(slots, training={"data": {"path": "x"}, "steps": 10**6, "batch": {"global": slots}}))


def test_the_status_of_ten_thousand_slots_stays_below_16_kb() -> None:
    world = large(10_000)
    words = {"message": "m" * 5000, "traceback": "t" * 9000}
    for n in range(30):
        world.agent(0, next_store=store(0, 50_000 + n))
        world.agent(n, round=world.status.round, verdict=verdict(n, round=world.status.round, **words))
        assert world.write().intent
        # It trains on, so the budget per cause isn't spent.
        clock = {f"phase {i}": 1.23456 for i in range(30)}
        ranks = world.ranks(n, step=100 * n + 50)
        world.agent(n, round=world.status.round, verdict=None, clock=clock, resumed_step=100 * n, ranks=ranks)
        world.write()
        world.now += 400
    for slot in range(0, 3000, 30):
        world.pod(slot, phase="Failed", exit_code=1)
    world.write()
    assert len(world.status.recoveries) == 10
    assert len(world.status.incarnations) < 1024
    assert len(world.status.model_dump_json(exclude_none=True).encode()) < 16_384


def test_the_status_of_a_thousand_pods_that_had_every_trouble_stays_below_16_kb() -> None:
    """Every other pod was replaced, so nothing runs together in ranges; failures, budgets, conditions are full."""
    world = large(1000)
    words = {"message": "m" * 5000, "traceback": "t" * 9000}
    for n in range(40):
        world.agent(n, round=world.status.round, verdict=verdict(n, round=world.status.round, **words))
        world.write()
        clock = {f"phase {i}": 1.23456 for i in range(30)}
        for slot in range(0, 2):
            world.agent(slot, next_store=store(slot, 60_000 + 2 * n))
        ranks = world.ranks(n, step=100 * n + 50)
        world.agent(n, round=world.status.round, verdict=None, clock=clock, resumed_step=100 * n, ranks=ranks)
        world.write()
        world.now += 400
    world.status = world.status.model_copy(update={"incarnations": pack_counts([n % 2 * 12 for n in range(1000)])})
    for slot in world.slots:
        world.pod(slot, phase="Pending", reason="Unschedulable", message="x" * 3000, node="", running_s=0.0)
    world.refusal = Refusal("Refused", "y" * 5000, 1.0)
    world.status = world.status.model_copy(update={"roundStore": "", "roundMap": ""})
    assert world.write().intent
    kinds = {c.type for c in world.status.conditions}
    assert {"Scheduled", "Running", "Recovering"} <= kinds
    assert len(world.status.recoveries) == 10
    size = len(world.status.model_dump_json(exclude_none=True).encode())
    assert 8_000 < size < 16_384


def calls(world: World) -> int:
    """Function calls of one pass that has something to decide, and of one directive."""
    observed = world.observed()
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        plan(world.spec, world.status, observed, world.now)
    finally:
        sys.setprofile(None)
    return count


def test_the_cost_of_a_pass_doubles_with_the_number_of_slots() -> None:
    small, big = large(500), large(1000)
    assert calls(big) < 2.3 * calls(small)


def test_the_cost_of_a_directive_does_not_depend_on_the_number_of_slots() -> None:
    small, big = large(100), large(1000)
    costs = []
    for world in (small, big):
        observed = world.observed()
        count = 0

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            directive(world.spec, world.status, observed, 57)
        finally:
            sys.setprofile(None)
        costs.append(count)
    assert costs[1] <= 1.1 * costs[0]
