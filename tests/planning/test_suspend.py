"""Suspending, resuming, and pods that were told to end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, job_spec, pending, recovered, running, script_spec, verdict
from trainmaster.contract.wire import Cause
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.job_state import JobPhase, Restarts


def suspended(spec: JobSpec, suspend: bool = True) -> JobSpec:
    return spec.model_copy(update={"suspend": suspend})


def suspending(step: int = 10) -> World:
    world = running(step=step)
    world.spec = suspended(world.spec)
    world.write()
    return world


def bound() -> World:
    world = suspending()
    for slot in world.slots:
        world.agent(slot, stop_ack=world.status.stopAt)
    world.write()
    assert world.status.stopBound
    return world


def test_a_job_that_is_to_stop_stops_at_one_step_above_the_highest() -> None:
    world = suspending(step=10)
    status = world.status
    assert status.phase is JobPhase.SUSPENDING
    assert status.stopAt is not None
    assert status.stopAt >= 12
    assert not status.stopBound
    for slot in (0, 1, 2):
        world.agent(slot, stop_ack=status.stopAt)
        assert not world.plan().intent
    world.agent(3, stop_ack=status.stopAt)
    world.write()
    assert world.status.stopBound
    for slot in world.slots:
        assert not world.plan().intent
        world.agent(slot, saved=True)
    assert world.write().status.phase is JobPhase.SUSPENDED
    decision = world.plan()
    assert [(d.name, d.grace_s) for d in decision.delete] == [(p.name, None) for p in world.pods.values()]
    assert (decision.intent, decision.create) == (False, ())


def test_the_margin_grows_with_the_rate_of_steps() -> None:
    world = running(step=10)
    world.status.progress.stepsPerSecond = 100.0
    world.spec = suspended(world.spec)
    world.write()
    assert world.status.stopAt == 10 + 2 + 100


def test_a_rank_that_has_passed_the_step_moves_it_up_until_it_binds() -> None:
    world = suspending(step=10)
    first = world.status.stopAt
    assert first is not None
    world.agent(1, stop_passed=first + 5)
    world.write()
    second = world.status.stopAt
    assert second is not None
    assert second > first + 5
    assert not world.plan().intent  # the old word is answered
    for slot in world.slots:
        world.agent(slot, stop_ack=second, stop_passed=None)
    world.write()
    world.agent(1, stop_passed=second + 1)
    assert (world.plan().intent, world.status.stopBound) == (False, True)


def test_a_job_without_a_round_is_suspended_at_once() -> None:
    world = pending()
    world.spec = suspended(world.spec)
    world.write()
    assert world.status.phase is JobPhase.SUSPENDED
    assert len(world.plan().delete) == 4


def test_a_job_that_is_suspended_from_birth_creates_nothing_and_starts_at_incarnation_0() -> None:
    world = World(suspended(job_spec()))
    world.settle()
    assert (world.status.phase, world.plan().create) == (JobPhase.SUSPENDED, ())
    world.spec = suspended(world.spec, False)
    world.settle()
    assert (world.status.phase, world.status.incarnations) == (JobPhase.PENDING, "0*4")
    assert world.status.restarts == Restarts()


def test_a_script_is_asked_in_the_same_way_since_its_agent_ends_it_when_the_stop_binds() -> None:
    world = running(script_spec())
    world.spec = suspended(world.spec)
    world.write()
    for slot in world.slots:
        world.agent(slot, stop_ack=world.status.stopAt)
    world.write()
    for slot in world.slots:
        world.agent(slot, saved=True)
    world.write()
    assert world.status.phase is JobPhase.SUSPENDED


def test_resuming_starts_fresh_pods_and_a_new_round_and_counts_nothing() -> None:
    world = bound()
    for slot in world.slots:
        world.agent(slot, saved=True)
    world.write()
    world.pods, world.agents = {}, {}
    world.spec = suspended(world.spec, False)
    world.now += 1000
    decision = world.write()
    status = decision.status
    assert (status.phase, status.round, status.roundStore, status.incarnations) == (JobPhase.PENDING, 2, "", "1*4")
    assert status.restarts == Restarts(free=1)
    assert (status.stopAt, status.stopBound, status.spent) == (None, False, [])
    recovered(world, step=16, resumed=14)
    assert (world.status.phase, world.status.round) == (JobPhase.RUNNING, 2)


def test_a_resumed_job_may_have_another_size() -> None:
    world = bound()
    for slot in world.slots:
        world.agent(slot, saved=True)
    world.write()
    world.spec = job_spec(2)
    world.write()
    assert (world.status.incarnations, world.status.workers.replicas) == ("1*2", 2)
    assert len(world.plan().delete) == 4


def test_the_wish_can_be_taken_back_until_it_binds() -> None:
    world = suspending()
    world.spec = suspended(world.spec, False)
    world.settle()
    assert (world.status.phase, world.status.stopAt, world.status.round) == (JobPhase.RUNNING, None, 1)


def test_a_stop_that_binds_is_carried_through() -> None:
    world = bound()
    world.spec = suspended(world.spec, False)
    assert not world.plan().intent
    for slot in world.slots:
        world.agent(slot, saved=True)
    world.write()
    assert world.status.phase is JobPhase.SUSPENDED
    world.write()
    assert world.status.phase is JobPhase.PENDING


def test_a_job_that_finishes_on_the_way_has_succeeded() -> None:
    world = bound()
    for slot in world.slots:
        world.agent(slot, done=True)
    world.write()
    assert world.status.phase is JobPhase.SUCCEEDED


def test_a_failure_on_the_way_stops_the_job_with_its_last_checkpoint_behind_a_fence() -> None:
    world = bound()
    world.agent(2, verdict=verdict())
    world.write()
    assert (world.status.phase, world.status.round, world.status.roundStore) == (JobPhase.SUSPENDED, 2, "")
    assert world.status.restarts == Restarts()
    assert world.status.lastFailure is not None


def test_wrong_data_on_the_way_fails_the_job() -> None:
    world = bound()
    world.agent(2, verdict=verdict(cause=Cause.DATA_ERROR))
    world.write()
    assert world.status.phase is JobPhase.FAILED


@pytest.mark.parametrize("told", [{"pod": {"deleting": True}}, {"agent": {"draining": True}}])
def test_a_pod_that_is_told_to_end_is_replaced_after_all_ranks_have_saved(told: dict[str, Any]) -> None:
    world = running(step=10)
    world.pod(2, **told.get("pod", {}))
    world.agent(2, **told.get("agent", {}))
    world.write()
    assert world.status.phase is JobPhase.RUNNING
    assert world.status.stopAt is not None
    for slot in world.slots:
        world.agent(slot, stop_ack=world.status.stopAt)
    world.write()
    assert world.status.stopBound
    world.agent(2, saved=True)
    assert not world.plan().intent
    world.pod(2, phase="Failed", exit_code=90)  # its agent leaves as soon as it has saved
    assert not world.plan().intent
    for slot in world.slots:
        world.agent(slot, saved=True)
    world.write()
    assert (world.status.incarnations, world.status.round, world.status.stopAt) == ("0*2,1,0", 2, None)
    assert world.status.restarts == Restarts(free=1)


def test_a_pod_that_ends_before_all_have_saved_is_replaced_all_the_same() -> None:
    world = running(step=10)
    world.pod(2, deleting=True)
    world.write()
    del world.pods[2]
    world.write()
    assert (world.status.incarnations, world.status.stopAt) == ("0*2,1,0", None)
    assert world.status.restarts == Restarts(free=1)


def test_a_pod_that_is_deleted_before_training_runs_is_replaced_at_once() -> None:
    world = pending()
    world.pod(2, deleting=True)
    world.write()
    assert world.status.incarnations == "0*2,1,0"


def test_ranks_that_stop_by_themselves_go_on_for_free_only_a_few_times() -> None:
    world = running(job_spec(1))
    for _ in range(5):
        world.agent(0, saved=True)
        world.write()
        world.obey(0)
    assert world.status.restarts == Restarts(free=3, inPlace=2)
