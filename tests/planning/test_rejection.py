"""Pods that their node turned away: no failure of the job, and no reason to send the next one at once."""

from __future__ import annotations

import pytest

from tests.planning.test_nodes import on_nodes
from tests.planning.test_pending import scheduled, waiting
from tests.planning.world import World, job_spec, running
from trainmaster_operator.planning.facts.job_state import JobPhase, ReleasedStatus, Restarts

PRESSURE = "Pod was rejected: The node had condition: [DiskPressure]. "


def turned_away(world: World, *slots: int) -> World:
    for slot in slots:
        world.pod(slot, phase="Failed", reason="Evicted", message=PRESSURE, node="n2", rejected=True, running_s=0.0)
    return world


def test_a_pod_that_a_node_turns_away_comes_again_a_little_later_and_counts_nothing() -> None:
    world = turned_away(waiting(slots=()), 1, 2)
    decision = world.write()
    assert [e.reason for e in decision.events] == ["Refused"]
    assert (world.status.incarnations, world.status.phase) == ("0,1*2,0", JobPhase.PENDING)
    assert (world.status.restarts, world.status.recoveries) == (Restarts(), [])
    condition = scheduled(world)
    assert (condition.status, condition.reason) == ("False", "Refused")
    assert condition.message == f"node n2 rejected pod job-worker-1-0: Evicted: {PRESSURE} (and 1 more)"
    decision = world.plan()
    assert ([d.grace_s for d in decision.delete], decision.create) == ([0.0, 0.0], ())
    for slot in (1, 2):
        del world.pods[slot]
    assert world.plan().requeue_after_s == pytest.approx(1.0)
    world.now += 1.0
    assert [p.slot for p in world.plan().create] == [1, 2]


def test_a_pod_that_its_node_takes_no_note_of_comes_again_elsewhere_and_counts_nothing() -> None:
    world = on_nodes(waiting(slots=()))
    world.pod(1, phase="Pending", node="n2", running_s=0.0, unheard_s=10.0)
    assert world.plan().requeue_after_s == pytest.approx(5.0)
    world.pod(1, unheard_s=15.5)
    decision = world.write()
    assert [e.reason for e in decision.events] == ["Refused"]
    assert (world.status.incarnations, world.status.avoidNodes) == ("0,1,0*2", ["n2"])
    assert (world.status.restarts, world.status.recoveries) == (Restarts(), [])
    words = "pod job-worker-1-0 was assigned to node n2, whose kubelet has not acted on it for 16 s"
    assert scheduled(world).message == words
    (delete,) = world.plan().delete
    assert (delete.name, delete.grace_s) == ("job-worker-1-0", 0.0)
    del world.pods[1]
    world.now += 1.0
    assert [p.slot for p in world.plan().create] == [1]


def test_a_node_that_turns_away_again_and_again_is_asked_less_and_less_often() -> None:
    world = waiting(job_spec(recovery={"agentLostSeconds": 1000}), slots=())
    waits = []
    for _ in range(9):
        turned_away(world, 1)
        world.write()
        del world.pods[1]
        wait = world.plan().requeue_after_s
        assert wait is not None
        waits.append(round(wait))
        world.now += wait
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert world.status.phase is JobPhase.PENDING
    assert world.status.restarts == Restarts()


def test_a_successor_that_is_turned_away_counts_nothing_beside_its_cause() -> None:
    world = running()
    world.pod(1, phase="Failed", exit_code=1)
    world.settle()
    turned_away(world, 1)
    world.settle()
    assert world.status.restarts == Restarts(inPlace=0, pod=1, full=0, free=0)
    assert (world.status.incarnations, world.status.phase) == ("0,2,0*2", JobPhase.RECOVERING)
    assert len(world.status.recoveries) == 1


def test_a_node_that_rejects_pods_for_days_is_still_asked_once_a_minute() -> None:
    world = waiting(job_spec(recovery={"agentLostSeconds": 1e6}), slots=())
    world.status.released = ReleasedStatus(times=5000)
    turned_away(world, 1)
    world.write()
    del world.pods[1]
    assert world.plan().requeue_after_s == pytest.approx(60.0)
