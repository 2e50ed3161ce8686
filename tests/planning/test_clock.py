"""Where a recovery's time went."""

from __future__ import annotations

import pytest

from tests.planning.world import running, verdict
from trainmaster.contract.wire import Cause


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
    for slot in world.slots:
        world.obey(slot, step=10, resumed=10, clock={"fork": 0.01, "rendezvous": 0.5, "build": 1.0, "load": 2.0})
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
