"""Pods that a scheduling gate holds back: what is told of them, and that no deadline runs meanwhile."""

from __future__ import annotations

import pytest

from tests.planning.test_pending import scheduled, waiting
from tests.planning.world import World, job_spec
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.observation import EventType

MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"


def gated(**spec: object) -> World:
    """All pods of a job are gated."""
    world = waiting(job_spec(**spec), slots=(0, 1, 2, 3), reason="SchedulingGated", message=MESSAGE)
    world.settle()
    return world


def lifted(world: World, reason: str = "Unschedulable") -> World:
    for slot in world.slots:
        world.pod(slot, reason=reason, message="")
    world.settle()
    return world


def test_a_gated_pod_is_not_called_unschedulable_and_no_warning_is_given() -> None:
    world = waiting(reason="SchedulingGated", message=MESSAGE)
    decision = world.write()
    assert [(event.type, event.reason) for event in decision.events] == [(EventType.NORMAL, "SchedulingGated")]
    assert (scheduled(world).status, scheduled(world).reason) == ("False", "SchedulingGated")
    assert MESSAGE in scheduled(world).message


@pytest.mark.parametrize("deadline", ["pendingDeadlineSeconds", "activeDeadlineSeconds"])
def test_no_deadline_runs_while_pods_are_gated(deadline: str) -> None:
    world = gated(**{deadline: 300})
    world.now += 100_000
    assert world.settle().requeue_after_s is None
    assert world.status.phase is JobPhase.PENDING
    lifted(world)
    world.now += 299
    world.settle()
    assert world.status.phase is JobPhase.PENDING
    world.now += 2
    world.settle()
    assert world.status.phase is JobPhase.FAILED


def test_gated_time_is_summed_over_all_gates_of_a_run() -> None:
    world = gated(activeDeadlineSeconds=1000)
    world.now += 500
    lifted(world)
    world.now += 100
    for slot in world.slots:
        world.pod(slot, reason="SchedulingGated")
    world.settle()
    world.now += 700
    lifted(world)
    assert world.status.gates is not None
    assert world.status.gates.seconds == pytest.approx(1200, abs=0.01)
    world.now += 800
    world.settle()
    assert world.status.phase is JobPhase.PENDING
    world.now += 200
    world.settle()
    assert world.status.phase is JobPhase.FAILED


def test_a_job_without_gates_remembers_none() -> None:
    world = waiting(reason="Unschedulable")
    world.settle()
    assert world.status.gates is None


def test_an_elastic_job_waits_for_its_pods_from_the_removal_of_the_gate_on() -> None:
    elastic = {"elastic": {"waitSeconds": 30}, "agentLostSeconds": 1e6}
    world = gated(workers={"replicas": 4, "min": 2}, recovery=elastic, checkpoint={"directory": "/checkpoints"})
    world.now += 600
    lifted(world, reason="")
    for slot in (0, 1):
        world.pod(slot, phase="Running", running_s=1.0)
        world.agent(slot)
    decision = world.settle()
    assert world.status.roundMap == ""
    assert decision.requeue_after_s is not None
    world.now += 29.0
    world.settle()
    assert world.status.roundMap == ""
    world.now += 1.0
    world.settle()
    assert world.status.roundMap == "0-1"


def test_an_elastic_job_starts_with_the_pods_that_no_gate_holds_back() -> None:
    elastic = {"elastic": {"waitSeconds": 30}, "agentLostSeconds": 1e6}
    world = gated(workers={"replicas": 4, "min": 2}, recovery=elastic, checkpoint={"directory": "/checkpoints"})
    for slot in (0, 1):
        world.pod(slot, phase="Running", running_s=1.0, reason="", message="", node=f"node-{slot}")
        world.agent(slot)
    world.now += 31.0
    world.settle()
    assert world.status.roundMap == "0-1"
