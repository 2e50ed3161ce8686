"""Another number of pods for a job that runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, job_spec, pending, running, script_spec, verdict
from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.job_state import Condition, JobPhase, Restarts
from trainmaster_operator.planning.facts.observation import PodToCreate, Refusal
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.lifecycle import elastic_resize
from trainmaster_operator.planning.rounds import open_round
from trainmaster_operator.planning.rounds.directives import directive

SAVES = {"directory": "/checkpoints"}


def elastic_spec(replicas: int = 4, elastic: dict[str, float] | None = None, **workers: Any) -> JobSpec:
    """The batch of 840 can be shared by 1 to 8 ranks, and by no 9 or 11."""
    return job_spec(
        workers={"replicas": replicas, **workers},
        checkpoint=SAVES,
        recovery={
            "elastic": elastic or {},
            "agentLostSeconds": 1e6,
            "budget": {"inPlace": 2, "pod": 2, "full": 0},
        },
    )


def come_up(world: World, *slots: int) -> None:
    for slot in slots:
        world.pod(slot)
        world.agent(slot)


def all_stop(world: World) -> None:
    """Every rank of the round saves the step that it is to stop at."""
    for slot in world.members:
        world.agent(slot, stop_ack=world.status.stopAt)
    world.settle()
    assert world.status.stopBound
    for slot in world.members:
        world.agent(slot, saved=True)


def step_on(world: World, step: int = 20) -> None:
    for slot in world.members:
        world.obey(slot, step=step, resumed=step - 1)
    world.settle()


def as_wished(world: World) -> Condition | None:
    return next((c for c in world.status.conditions if c.type == "SizeAsWished"), None)


def test_a_job_grows_once_its_new_pods_are_ready_and_trains_until_then() -> None:
    world = running(elastic_spec(3))
    world.spec = elastic_spec(5)
    decision = world.settle()
    assert decision.create == (PodToCreate("worker", 3, 0), PodToCreate("worker", 4, 0))
    assert (world.status.phase, world.status.stopAt, world.status.round) == (JobPhase.RUNNING, None, 1)
    come_up(world, 3)
    world.settle()
    assert world.status.phase is JobPhase.RUNNING
    come_up(world, 4)
    world.settle()
    assert world.status.phase is JobPhase.RESIZING
    assert world.status.stopAt is not None
    all_stop(world)
    status = world.write().status
    assert (status.round, status.roundMap, status.workers.replicas) == (2, "0-4", 5)
    assert (status.phase, status.roundStore != "", status.stopAt) == (JobPhase.RESIZING, True, None)
    assert status.restarts == Restarts(free=1)
    step_on(world)
    assert world.status.phase is JobPhase.RUNNING
    assert world.status.recoveries[-1].cause == "Resized"
    assert world.status.recoveries[-1].totalSeconds is not None


def test_training_goes_on_while_a_new_pod_still_imports() -> None:
    world = running(elastic_spec(3))
    world.spec = elastic_spec(4)
    world.settle()
    come_up(world, 3)
    world.agent(3, warming=True)
    world.settle()
    assert (world.status.phase, world.status.stopAt) == (JobPhase.RUNNING, None)
    world.agent(3, warming=False)
    world.settle()
    assert world.status.phase is JobPhase.RESIZING


def test_a_job_shrinks_at_once_and_its_highest_slots_go_after_the_round_has_opened() -> None:
    world = running(elastic_spec(4))
    world.spec = elastic_spec(3)
    world.settle()
    assert (world.status.phase, unpack_counts(world.status.incarnations)) == (JobPhase.RESIZING, [0] * 4)
    all_stop(world)
    status = world.write().status
    assert (status.round, status.roundMap, status.incarnations) == (2, "0-2", "0*4")
    assert status.roundStore != ""
    told = directive(world.spec, world.status, world.observed(), 0)
    assert told.assignment is not None
    assert (told.assignment.world_size, told.assignment.mesh) == (3, {"dpReplicate": 3, "dpShard": 1})
    decision = world.settle()
    assert world.status.incarnations == "0*3"
    assert [d.name for d in decision.delete] == ["job-worker-3-0"]


def test_a_resize_takes_as_long_as_ranks_do_not_step_and_not_only_as_the_new_ones_need() -> None:
    world = running(elastic_spec(4))
    world.spec = elastic_spec(3)
    world.settle()
    all_stop(world)
    world.agent(2, saved=True, saved_s=0.75, silent_s=0.25)
    recovery = world.write().status.recoveries[-1]
    assert (recovery.startedAt, recovery.clock["detect"]) == (rfc3339(world.now - 1), 1.0)


def test_four_three_four_ends_where_it_began() -> None:
    world = running(elastic_spec(4))
    for replicas in (3, 4):
        world.spec = elastic_spec(replicas)
        world.settle()
        for slot in world.slots:
            come_up(world, slot) if slot not in world.members else None
        world.settle()
        all_stop(world)
        world.settle()
        del world.pods[3]
        world.agents.pop(3)
        if replicas == 4:
            come_up(world, 3)
        step_on(world)
    assert (world.status.roundMap, world.status.incarnations) == ("0-3", "0*3,1")
    assert (world.status.phase, world.status.restarts) == (JobPhase.RUNNING, Restarts(free=2))


def test_a_wish_is_rounded_down_and_the_condition_says_so() -> None:
    world = running(elastic_spec(4, min=2, max=12))
    assert as_wished(world) is None
    world.spec = elastic_spec(9, min=2, max=12)
    world.settle()
    condition = as_wished(world)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "PodsMissing")
    assert len(unpack_counts(world.status.incarnations)) == 8
    come_up(world, 4, 5, 6, 7)
    world.settle()
    all_stop(world)
    world.settle()
    step_on(world)
    condition = as_wished(world)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "RoundedDown")
    assert condition.message == "the parallelism and the batch do not allow 9 pods; they allow 8, or 10"
    assert world.status.workers.legalSizes == [2, 3, 4, 5, 6, 7, 8, 10, 12]


def test_a_job_that_begins_with_a_wish_begins_with_a_legal_size() -> None:
    world = pending(elastic_spec(9, min=2))
    assert (world.status.workers.replicas, len(world.plan().create)) == (8, 0)
    assert unpack_counts(world.status.incarnations) == [0] * 8


def test_without_a_place_for_checkpoints_a_running_job_keeps_its_size() -> None:
    world = running(job_spec(4))
    world.spec = job_spec(3)
    world.settle()
    assert (world.status.phase, world.status.incarnations) == (JobPhase.RUNNING, "0*4")
    condition = as_wished(world)
    assert condition is not None
    assert condition.reason == "NoCheckpoints"


def test_the_wish_can_be_taken_back_until_it_binds() -> None:
    world = running(elastic_spec(4))
    world.spec = elastic_spec(3)
    world.settle()
    assert world.status.stopAt is not None
    world.spec = elastic_spec(4)
    world.settle()
    assert (world.status.phase, world.status.stopAt, world.status.round) == (JobPhase.RUNNING, None, 1)


def test_pods_that_vanish_before_the_stop_binds_are_waited_for_again() -> None:
    world = running(elastic_spec(3))
    world.spec = elastic_spec(4)
    world.settle()
    come_up(world, 3)
    world.settle()
    assert world.status.phase is JobPhase.RESIZING
    world.pod(3, phase="Failed", exit_code=1)
    world.settle()
    assert (world.status.phase, world.status.stopAt) == (JobPhase.RUNNING, None)
    assert world.status.incarnations == "0*3,1"


def test_a_stop_that_binds_is_carried_through_with_the_size_that_is_possible() -> None:
    world = running(elastic_spec(3))
    world.spec = elastic_spec(4)
    world.settle()
    come_up(world, 3)
    world.settle()
    for slot in world.members:
        world.agent(slot, stop_ack=world.status.stopAt)
    world.settle()
    assert world.status.stopBound
    world.pod(3, phase="Failed", exit_code=1)
    world.settle()
    for slot in world.members:
        world.agent(slot, saved=True)
    world.write()
    assert (world.status.roundMap, world.status.round) == ("0-2", 2)


def test_a_suspend_overtakes_a_resize() -> None:
    world = running(elastic_spec(4))
    world.spec = elastic_spec(3)
    world.settle()
    world.spec = elastic_spec(3).model_copy(update={"suspend": True})
    world.settle()
    assert world.status.phase is JobPhase.SUSPENDING
    all_stop(world)
    world.settle()
    assert world.status.phase is JobPhase.SUSPENDED
    world.pods, world.agents = {}, {}
    world.spec = elastic_spec(3)
    world.write()
    assert (world.status.incarnations, world.status.workers.replicas) == ("1*3", 3)


def test_a_crash_while_new_pods_come_restarts_the_old_world_at_once() -> None:
    world = running(elastic_spec(3))
    world.spec = elastic_spec(5)
    world.settle()
    come_up(world, 3)
    world.agent(1, verdict=verdict(1))
    status = world.write().status
    assert (status.phase, status.restarts) == (JobPhase.RECOVERING, Restarts(inPlace=1))
    assert status.roundMap == "0-3"  # 4 is legal, and a restart is due anyway


def test_some_of_the_new_pods_will_do_when_the_others_do_not_come() -> None:
    world = running(elastic_spec(3, {"waitSeconds": 30}))
    world.spec = elastic_spec(6, {"waitSeconds": 30})
    world.settle()
    come_up(world, 3, 4)
    decision = world.settle()
    assert world.status.phase is JobPhase.RUNNING
    assert decision.requeue_after_s == pytest.approx(30, abs=0.01)
    world.now += 30
    world.settle()
    assert world.status.phase is JobPhase.RESIZING
    all_stop(world)
    world.settle()
    assert world.status.roundMap == "0-4"
    come_up(world, 5)
    step_on(world)
    assert world.status.phase is JobPhase.RESIZING


def lost(world: World, slot: int) -> None:
    """Its pod ends, and the next one finds no place."""
    world.pod(slot, phase="Failed", exit_code=137)
    world.write()
    world.pods.pop(slot)
    world.agents.pop(slot, None)
    world.pod(slot, phase="Pending", reason="Unschedulable", node="", running_s=0.0)
    world.settle()


def test_a_job_goes_on_with_fewer_pods_when_one_does_not_come_back() -> None:
    world = running(elastic_spec(4, min=2))
    lost(world, 1)
    assert (world.status.phase, world.status.roundStore) == (JobPhase.RECOVERING, "")
    world.now += 29
    assert not world.plan().intent
    assert world.plan().requeue_after_s == pytest.approx(1, abs=0.01)
    world.now += 1
    status = world.write().status
    assert (status.roundMap, status.workers.replicas, status.incarnations) == ("0,2-3", 3, "0,1,0*2")
    assert status.restarts == Restarts(pod=1)
    step_on(world)
    condition = as_wished(world)
    assert condition is not None
    assert (condition.reason, condition.message) == ("PodsMissing", "the job trains with 3 of 4 pods")


def test_it_takes_the_pod_back_after_the_cooldown() -> None:
    world = running(elastic_spec(4, {"cooldownSeconds": 60}, min=2))
    lost(world, 1)
    world.now += 30
    world.settle()
    step_on(world)
    world.now += 10
    come_up(world, 1)
    world.pods.pop(1)
    come_up(world, 1)
    decision = world.settle()
    assert world.status.phase is JobPhase.RUNNING
    assert decision.requeue_after_s == pytest.approx(50, abs=0.01)
    world.now += 50
    world.settle()
    assert world.status.phase is JobPhase.RESIZING
    all_stop(world)
    world.settle()
    assert (world.status.roundMap, world.status.workers.shrunkAt) == ("0-3", "")
    step_on(world)
    condition = as_wished(world)
    assert condition is not None
    assert condition.status == "True"


def test_without_a_minimum_a_job_waits_for_its_pods() -> None:
    world = running(elastic_spec(4))
    lost(world, 1)
    world.now += 10_000
    assert not world.plan().intent


def test_a_job_never_shrinks_below_its_minimum_or_to_an_illegal_size() -> None:
    world = running(elastic_spec(4, min=3))
    lost(world, 1)
    lost(world, 2)
    world.now += 10_000
    assert not world.plan().intent
    odd = job_spec(
        workers={"replicas": 4, "min": 1},
        checkpoint=SAVES,
        training={"data": {"path": "x"}, "steps": 100, "batch": {"global": 8}},
        recovery={"agentLostSeconds": 1e6},
    )
    world = running(odd)
    lost(world, 1)
    world.now += 31
    assert world.write().status.roundMap == "0,2"


def fails_and_all_come_back(world: World, slot: int, round: int) -> None:
    world.agent(slot, round=round, verdict=verdict(slot, round=round))
    world.settle()
    for each in world.slots:
        world.pod(each)
        world.agent(each)
    world.settle()


def test_a_job_whose_budget_is_spent_goes_on_without_the_pod_that_spent_it() -> None:
    world = running(elastic_spec(4, min=2))
    for number in range(1, 5):
        fails_and_all_come_back(world, 2, round=number)
        step_on(world, 10)
    assert world.status.restarts == Restarts(inPlace=2, pod=2)
    world.agent(2, round=5, verdict=verdict(2, round=5))
    status = world.write().status
    assert (status.phase, status.round, status.roundMap) == (JobPhase.RECOVERING, 6, "0-1,3")
    assert (status.restarts.shrink, status.workers.replicas) == (1, 3)
    assert status.incarnations == "0*2,3,0"
    assert status.roundStore != ""
    assert status.recoveries[-1].rung.value == "shrink"
    step_on(world, 30)
    # Its fresh pod is taken back after the cooldown.
    del world.pods[2]
    come_up(world, 2)
    world.settle()
    assert world.status.phase is JobPhase.RUNNING
    world.now += 60
    world.settle()
    assert world.status.phase is JobPhase.RESIZING


def test_it_fails_when_no_smaller_size_is_left() -> None:
    world = running(elastic_spec(2, min=2))
    for number in range(1, 6):
        fails_and_all_come_back(world, 1, round=number)
        step_on(world, 10) if not world.status.phase.finished else None
    assert world.status.phase is JobPhase.FAILED


def test_a_job_begins_with_fewer_pods_when_the_others_find_no_place() -> None:
    world = pending(elastic_spec(4, min=2))
    for slot in (0, 2):
        world.agent(slot)
    world.refusal = Refusal("Refused", "exceeded quota", 1.0)
    world.settle()
    world.now += 30
    world.settle()
    assert (world.status.roundMap, world.status.workers.replicas) == ("0,2", 2)


def test_a_job_that_has_not_begun_takes_its_new_size_at_once() -> None:
    world = pending(elastic_spec(4))
    world.spec = elastic_spec(6)
    world.settle()
    assert (world.status.workers.replicas, world.status.incarnations) == (6, "0*6")
    world.spec = elastic_spec(2)
    world.settle()
    assert (world.status.workers.replicas, world.status.incarnations) == (2, "0*2")
    come_up(world, 0, 1)
    world.settle()
    assert (world.status.round, world.status.roundMap) == (1, "0-1")


def test_a_script_is_resized_in_the_same_way() -> None:
    template = script_spec().workers.template
    world = running(script_spec(workers={"replicas": 4, "min": 1, "template": template}))
    world.spec = script_spec(workers={"replicas": 2, "min": 1, "template": template})
    world.settle()
    all_stop(world)
    world.settle()
    assert (world.status.roundMap, world.status.incarnations) == ("0-1", "0*2")


def test_a_spare_and_a_resize_keep_the_ranks_of_one_world_apart() -> None:
    world = running(elastic_spec(4, spares=1))
    world.pod(1, phase="Failed", exit_code=137)
    world.write()
    assert world.status.roundMap == "0,4,2-3"
    world.pods.pop(1)
    come_up(world, 1)
    step_on(world)
    world.spec = elastic_spec(3, spares=1)
    world.settle()
    all_stop(world)
    world.settle()
    assert (world.status.roundMap, world.status.incarnations) == ("0,2-3", "0,1,0*2")
    assert world.status.workers.nextIncarnation == 1


def test_a_drain_during_a_resize_is_settled_by_the_same_stop() -> None:
    world = running(elastic_spec(4))
    world.spec = elastic_spec(3)
    world.settle()
    world.pod(0, deleting=True)
    world.settle()
    all_stop(world)
    world.settle()
    assert (world.status.roundMap, world.status.round) == ("1-3", 2)


def stopped_to_grow() -> World:
    """From two pods to three, and nobody has opened the round yet."""
    world = running(elastic_spec(2))
    world.spec = elastic_spec(3)
    world.settle()
    come_up(world, 2)
    world.settle()
    assert world.status.phase is JobPhase.RESIZING
    all_stop(world)
    return world


def test_a_new_leader_hears_the_pods_that_a_job_grows_by_before_it_opens_the_round() -> None:
    world = stopped_to_grow()
    world.leading_s = 1.0
    world.agent(2, joined=False)
    assert world.settle().requeue_after_s == pytest.approx(elastic_resize.HEARD_AFTER_S - 1.0)
    assert world.status.round == 1
    world.agent(2, joined=True)
    world.write()
    assert (world.status.round, world.status.roundMap) == (2, "0-2")


def test_a_new_leader_waits_for_the_polls_of_members_that_it_has_stopped() -> None:
    world = stopped_to_grow()
    world.leading_s = 1.0
    world.agent(0, joined=False)
    world.settle()
    assert world.status.round == 1
    world.agent(0, joined=True)
    world.write()
    assert (world.status.round, world.status.roundMap) == (2, "0-2")


def test_a_new_leader_waits_in_vain_for_no_more_than_a_moment() -> None:
    world = stopped_to_grow()
    world.agent(2, joined=False)
    world.leading_s = elastic_resize.HEARD_AFTER_S
    world.write()
    assert (world.status.round, world.status.roundMap) == (2, "0-1")


def test_ranks_that_stop_by_themselves_in_a_resize_are_told_without_a_step() -> None:
    """Such as when their nodes drain before the first step of the round with another size."""
    world = running(elastic_spec(4))
    world.spec = elastic_spec(3)
    world.settle()
    all_stop(world)
    world.write()
    assert (world.status.phase, world.status.stopAt) == (JobPhase.RESIZING, None)
    for slot in world.members:
        world.obey(slot, step=0)
        world.agent(slot, saved=True)
    (event,) = [event for event in world.write().events if event.reason == "Resizing"]
    assert event.message == "every rank stopped (round 3)"


def test_a_pass_over_pods_that_wait_tries_no_size_for_which_too_few_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    arrange = open_round._arranged

    def counting(view: Any, size: int, able: list[bool]) -> Any:
        tried.append(size)
        return arrange(view, size, able)

    monkeypatch.setattr(open_round, "_arranged", counting)
    spec = script_spec(60)
    world = World(spec.model_copy(update={"workers": spec.workers.model_copy(update={"min": 1})}))
    world.settle()
    come_up(world, 1, 2, 3)
    tried.clear()
    world.now += 60
    world.settle()
    assert world.members == [1, 2, 3]
    assert set(tried) == {3}
