"""How a job ends, and what becomes of its pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planning.world import World, job_spec, running, script_spec, verdict
from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.status_mapping import write_status


def done(spec_fields: dict[str, object] | None = None) -> World:
    world = running(job_spec(**(spec_fields or {})))
    for slot in world.slots:
        world.agent(slot, done=True)
    world.write()
    return world


def test_a_job_has_succeeded_when_every_agent_is_done_in_this_round() -> None:
    world = running(job_spec(checkpoint={"directory": "/checkpoints"}))
    for slot in (0, 1, 2):
        world.agent(slot, done=True)
        assert not world.plan().intent
    world.agent(3, done=True, round=0)
    assert not world.plan().intent
    world.agent(3, round=1)
    world.write()
    assert world.status.phase is JobPhase.SUCCEEDED
    assert world.status.completionTime
    holds = {c.type: c.status for c in world.status.conditions}
    assert holds == {"Scheduled": "True", "Running": "False", "Complete": "True"}


def test_a_job_that_has_ended_counts_no_pod_as_ready() -> None:
    world = running(job_spec(2))
    assert write_status(world.status)["workers"]["summary"] == "2/2"
    world.agent(1, verdict=verdict(1, Cause.CONFIG_ERROR))
    world.write()
    assert world.status.phase is JobPhase.FAILED
    assert write_status(world.status)["workers"]["summary"] == "0/2"


def test_a_recovery_that_the_end_overtakes_did_not_come_to_a_step() -> None:
    world = running(script_spec(2))
    world.agent(1, verdict=verdict(1))
    world.write()
    for slot in world.slots:
        world.obey(slot)
        world.agent(slot, done=True)
    world.write()
    (recovery,) = world.status.recoveries
    assert world.status.phase is JobPhase.SUCCEEDED
    assert (recovery.overtaken, recovery.totalSeconds is None) == (True, False)


def test_done_outweighs_a_pod_that_ends_afterwards() -> None:
    world = running()
    for slot in world.slots:
        world.agent(slot, done=True)
    world.pod(1, phase="Succeeded")
    world.write()
    assert world.status.phase is JobPhase.SUCCEEDED


@pytest.mark.parametrize(
    ("policy", "at_once", "later"), [("All", {1}, {0, 2, 3}), ("Running", set(), {0, 2, 3}), ("None", set(), set())]
)
def test_agents_may_end_by_themselves_before_pods_are_cleaned_up(
    policy: str, at_once: set[int], later: set[int]
) -> None:
    world = done({"cleanPodPolicy": policy})
    world.pod(1, phase="Succeeded")
    decision = world.plan()
    assert {world_slot(d.name) for d in decision.delete} == at_once
    assert not decision.intent
    if at_once:
        del world.pods[1]
    world.now += 10
    assert {world_slot(d.name) for d in world.plan().delete} == later


def world_slot(name: str) -> int:
    return int(name.split("-")[2])


def test_a_sidecar_that_runs_on_is_cleaned_up_with_its_pod() -> None:
    world = done()
    world.pod(1, phase="Succeeded", lingers=True)
    world.now += 10
    assert {world_slot(d.name) for d in world.plan().delete} == {0, 1, 2, 3}


@pytest.mark.parametrize(("node_lost", "grace_s"), [(False, None), (True, 0.0)])
def test_a_pod_of_an_earlier_incarnation_is_removed_by_force_only_from_a_lost_node(
    node_lost: bool, grace_s: float | None
) -> None:
    world = done({"cleanPodPolicy": "None"})
    world.pods[9] = replace(world.pods[1], name="old", uid="old", incarnation=-1, node_lost=node_lost)
    assert [(d.name, d.grace_s) for d in world.plan().delete] == [("old", grace_s)]


def test_the_time_of_the_clean_up_is_asked_for() -> None:
    world = done()
    world.now += 4
    assert world.plan().requeue_after_s == pytest.approx(6.0)


def test_nothing_happens_to_a_job_that_is_over() -> None:
    world = done()
    world.agent(2, verdict=verdict())
    world.now += 1e6
    assert world.plan().status == world.status


def test_a_job_fails_when_its_deadline_passes() -> None:
    world = running(job_spec(activeDeadlineSeconds=60, recovery={"agentLostSeconds": 1000}))
    decision = world.plan()
    assert decision.requeue_after_s == pytest.approx(55.0)
    world.now += 55.0
    world.write()
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.cause == "DeadlineExceeded"


def test_a_finished_job_is_deleted_when_its_time_to_live_is_over() -> None:
    world = done({"ttlSecondsAfterFinished": 100, "cleanPodPolicy": "None"})
    decision = world.plan()
    assert not decision.delete_job
    assert decision.requeue_after_s == 100
    world.now += 100
    assert world.plan().delete_job


def test_a_finished_job_without_a_time_to_live_is_kept() -> None:
    world = done({"cleanPodPolicy": "None"})
    world.now += 10**9
    decision = world.plan()
    assert (decision.delete_job, decision.requeue_after_s) == (False, None)


def test_a_job_that_runs_is_not_deleted_by_its_time_to_live() -> None:
    world = running(job_spec(ttlSecondsAfterFinished=0))
    assert not world.plan().delete_job


@pytest.mark.parametrize(
    ("policy", "pod", "deleted"),
    [
        ("Running", {"phase": "Failed", "lingers": True}, True),  # A sidecar would run for ever.
        ("Running", {"phase": "Failed"}, False),
        ("None", {"phase": "Failed", "lingers": True}, False),
        ("All", {"phase": "Failed"}, True),
    ],
)
def test_a_replaced_pod_that_is_still_there_at_the_end_is_deleted_like_the_others(
    policy: str, pod: dict[str, object], deleted: bool
) -> None:
    world = done({"cleanPodPolicy": policy})
    world.status.incarnations = "0,1,0*2"
    world.pods[9] = world.pods[1]
    world.pod(1)
    world.pods[9] = replace(world.pods[9], **pod)  # type: ignore[arg-type]
    assert ("job-worker-1-0" in [d.name for d in world.plan().delete]) is deleted
