"""Where a recovery's time went."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.planning.world import running, verdict
from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.timestamps import since

ROUNDED_S = 0.002
"""Times in the status are whole milliseconds."""


def test_a_pods_replacement_shows_the_pods_end_its_successors_way_to_run_and_the_wait_for_its_agent() -> None:
    world = running(step=10)
    world.agent(2, verdict=verdict(cause=Cause.HARDWARE_FAULT, age_s=0.5), verdict_age_s=0.5)
    world.settle()
    world.now += 1.0
    world.settle()  # the old pod is still there
    old = world.pods.pop(2)
    world.now += 0.5
    world.settle()
    world.pod(2, phase="Pending")
    world.now += 4.0
    world.settle()
    world.pod(2, phase="Running", running_s=0.25)
    world.now += 0.25
    world.settle()
    world.now += 3.0
    world.agent(2)
    for slot in world.slots:
        world.agent(slot)
    world.settle()
    assert world.status.roundStore
    to_the_round = {"decide": 1.0 + 0.5 + 4.0 + 0.25 + 3.0}  # from the verdict's arrival until the round is published
    for slot in world.slots:
        parts = {**to_the_round, "fork": 0.01, "rendezvous": 0.5, "build": 1.0, "load": 2.0}
        world.obey(slot, step=10, resumed=10, clock=parts)
    world.now += 4.0
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=11), clock={**world.agents[slot].clock, "first_step": 0.4})
    world.settle()
    (recovery,) = world.status.recoveries
    assert old.incarnation == 0
    assert recovery.clock == {
        "detect": pytest.approx(0.5),
        "decide": pytest.approx(0.0),
        "drain": pytest.approx(1.5),
        "schedule": pytest.approx(4.0),
        "start": pytest.approx(3.25),
        "fork": 0.01,
        "rendezvous": 0.5,
        "build": 1.0,
        "load": 2.0,
        "first_step": 0.4,
    }
    assert sum(recovery.clock.values()) <= recovery.totalSeconds + 0.5


def test_a_restart_in_place_with_a_store_at_hand_has_no_share_of_pods() -> None:
    world = running(step=10)
    world.agent(2, verdict=verdict(), verdict_age_s=0.1)
    world.settle()
    assert set(world.status.recoveries[0].clock) == {"detect", "decide"}


def test_the_wait_of_one_pod_for_another_is_counted_once_where_it_was_spent() -> None:
    """A pod is replaced in 8 s; then the old rank of another pod needs 63 s to end, and the new pod waits for it."""
    world = running(step=10)
    world.agent(2, verdict=verdict(cause=Cause.HARDWARE_FAULT, age_s=1.0), verdict_age_s=1.0)
    world.settle()
    world.pods.pop(2)
    world.settle()
    world.pod(2, phase="Running", running_s=1.0)
    world.now += 8.0
    for slot in world.slots:
        world.agent(slot)
    world.settle()
    assert world.status.roundStore
    new = {"drain": 0.0, "fork": 0.5, "imports": 0.5, "rendezvous": 63.0, "build": 0.2, "load": 0.3, "first_step": 0.5}
    late = {"drain": 63.0, "fork": 0.1, "imports": 0.7, "rendezvous": 0.2, "build": 0.1, "load": 0.1, "first_step": 0.8}
    world.now += 65.0
    for slot in world.slots:
        world.obey(slot, step=11, resumed=10, clock=late if slot == 0 else new)
    world.settle()
    (recovery,) = world.status.recoveries
    assert recovery.totalSeconds == pytest.approx(74.0, abs=0.01)
    assert {name: recovery.clock[name] for name in ("rendezvous", "load", "first_step")} == {
        "rendezvous": 0.2,  # the last one to come waited for nobody
        "load": 0.3,  # the last one to begin the first step waited for nobody there
        "first_step": 0.5,
    }
    assert recovery.clock["drain"] == pytest.approx(63.0, abs=0.01)
    assert recovery.clock["schedule"] == pytest.approx(7.0, abs=0.01)
    assert sum(recovery.clock.values()) == pytest.approx(74.0, abs=0.1)


def test_a_phase_is_added_to_a_clock_once_however_often_agents_report_it() -> None:
    world = running(step=10)
    world.agent(2, verdict=verdict(), verdict_age_s=0.1)
    world.settle()
    world.now += 3.0
    for slot in world.slots:
        world.obey(slot, step=11, resumed=10, clock={"drain": 0.2, "fork": 0.1, "rendezvous": 0.5, "first_step": 1.0})
    world.settle()
    first = world.status.recoveries[0].clock
    assert first["drain"] == 0.2
    for slot in world.slots:
        world.agent(slot, clock={"drain": 0.9, "fork": 0.9, "rendezvous": 0.9, "first_step": 2.0})
    world.settle()
    assert world.status.recoveries[0].clock == first
    assert world.status.totals is not None
    assert {name: world.status.totals.phases.get(name, 0.0) for name in first} == first


SECONDS = st.one_of(st.floats(0, 100), st.sampled_from([0.0, -1.0, 1e12, math.inf, math.nan]))
CLOCKS = st.dictionaries(
    st.sampled_from(["decide", "drain", "fork", "imports", "rendezvous", "build", "load", "first_step", "other"]),
    SECONDS,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    detected=st.tuples(SECONDS, st.floats(0, 30)),
    replaced=st.booleans(),
    waits=st.lists(st.floats(0, 90), min_size=5, max_size=5),
    told=st.lists(st.tuples(st.integers(0, 3), CLOCKS, st.booleans(), st.floats(0, 20)), max_size=12),
)
def test_the_phases_of_a_recovery_never_take_more_than_the_time_that_has_passed(
    detected: tuple[float, float],
    replaced: bool,
    waits: list[float],
    told: list[tuple[int, dict[str, float], bool, float]],
) -> None:
    """Whatever agents report, in whatever order, and whether the ranks restart in place or a pod is replaced."""
    world = running(step=10)
    cause = Cause.HARDWARE_FAULT if replaced else Cause.CRASH
    world.agent(2, verdict=verdict(cause=cause, age_s=detected[0]), verdict_age_s=detected[1])
    seen: dict[str, float] = {}

    def look() -> None:
        world.settle()
        for recovery in world.status.recoveries:
            wall_s = recovery.totalSeconds
            if wall_s is None:
                wall_s = since(recovery.startedAt, world.now)
            assert sum(recovery.clock.values()) <= wall_s + ROUNDED_S
            assert all(seconds >= 0 for seconds in recovery.clock.values())
        phases = world.status.totals.phases if world.status.totals is not None else {}
        assert all(phases[name] >= seconds for name, seconds in seen.items()), "Prometheus would count it again"
        seen.update(phases)

    look()
    world.now += waits[0]
    if replaced:
        look()
        world.pods.pop(2)
        world.now += waits[1]
        look()
        world.pod(2, phase="Pending")
        world.now += waits[2]
        look()
        world.pod(2, phase="Running", running_s=waits[3] / 10)
        world.now += waits[3] / 10
        look()
        world.now += waits[4]
        for slot in world.slots:
            world.agent(slot)
        look()
    for slot in world.slots:
        world.obey(slot, step=10, resumed=10)
    look()
    for slot, clock, steps, seconds in told:
        world.now += seconds
        known = world.agents[slot]
        world.agent(slot, clock={**known.clock, **clock})
        if steps:
            world.agent(slot, ranks=world.ranks(slot, step=11))
        look()
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=12))
    look()
    (recovery,) = world.status.recoveries
    assert recovery.totalSeconds is not None
