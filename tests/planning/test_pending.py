"""Pods that don't run: what is told of them, and for how long a job puts up with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, job_spec, opened, pending, running
from trainmaster_operator.planning.facts.job_state import Condition, JobPhase
from trainmaster_operator.planning.facts.observation import EventType, Refusal
from trainmaster_operator.planning.facts.timestamps import rfc3339


def waiting(spec: Any = None, slots: tuple[int, ...] = (2,), **pod: Any) -> World:
    """Pods of `slots` don't run, and why; the others do."""
    world = World(spec or job_spec())
    world.settle()
    for slot in world.slots:
        world.pod(slot, node=f"node-{slot}")
    for slot in slots:
        world.pod(slot, **{"phase": "Pending", "running_s": 0.0, "node": "", **pod})
    return world


def scheduled(world: World) -> Condition:
    (condition,) = [c for c in world.status.conditions if c.type == "Scheduled"]
    return condition


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        ("ErrImagePull", "not found", "ImageError"),
        ("ImagePullBackOff", "Back-off", "ImageError"),
        ("InvalidImageName", "bad", "ImageError"),
        ("CreateContainerConfigError", 'secret "s" not found', "ConfigError"),
        ("Unschedulable", "0/3 nodes are available", "Unschedulable"),
        ("Unschedulable", 'persistentvolumeclaim "c" not found', "Unschedulable"),
        ("SomethingNew", "odd", "SomethingNew"),
    ],
)
def test_what_keeps_a_pod_from_running_is_a_condition_and_an_event(reason: str, message: str, told: str) -> None:
    world = waiting(reason=reason, message=message)
    decision = world.write()
    assert decision.intent
    assert [(e.type, e.reason) for e in decision.events] == [(EventType.WARNING, told)]
    condition = scheduled(world)
    assert (condition.status, condition.reason) == ("False", told)
    assert condition.message == f"1 of 4 pods can't run: job-worker-2-0: {reason}: {message}"
    assert not world.plan().intent


def test_a_pod_that_is_merely_starting_is_no_news() -> None:
    world = waiting()
    decision = world.plan()
    assert not decision.intent
    assert decision.status == world.status


def test_a_kubelet_that_tries_and_backs_off_in_turn_is_told_as_one_event() -> None:
    world = waiting(reason="ErrImagePull", message="not found")
    world.settle()
    world.pod(2, reason="ImagePullBackOff", message="Back-off pulling image")
    decision = world.write()
    assert (decision.intent, decision.events) == (False, ())
    assert "Back-off" in scheduled(world).message


def test_what_will_not_pass_by_itself_is_told_before_what_may() -> None:
    world = waiting(slots=(0, 1, 2), reason="Unschedulable", message="no room")
    world.pod(2, reason="InvalidImageName", message="x:y:z")
    world.refusal = Refusal("Refused", "quota", 1.0)
    world.settle()
    assert scheduled(world).reason == "ImageError"
    assert scheduled(world).message.startswith("1 of 4 pods can't run: job-worker-2-0")


def test_the_condition_holds_once_a_round_has_opened() -> None:
    world = waiting(reason="Unschedulable", message="no room")
    world.settle()
    world.now += 60
    world.pod(2, phase="Running", reason="", message="", node="n", running_s=1.0)
    world.settle()
    assert scheduled(world).status == "False"  # it has no agent yet
    for slot in world.slots:
        world.agent(slot)
    world.settle()
    condition = scheduled(world)
    assert (condition.status, condition.message, condition.lastTransitionTime) == ("True", "", rfc3339(world.now))


def test_a_job_that_starts_without_trouble_writes_nothing_for_it() -> None:
    world = pending()
    before = world.status
    assert world.plan().status == before
    assert scheduled(opened()).status == "True"


def test_a_replaced_pod_that_finds_no_place_is_told_and_its_time_starts_then() -> None:
    world = running()
    world.now += 100
    world.pod(1, phase="Failed", exit_code=1)
    world.settle()
    world.pod(1, phase="Pending", reason="Unschedulable", message="no room", node="", running_s=0.0)
    world.settle()
    condition = scheduled(world)
    assert (condition.status, condition.reason) == ("False", "Unschedulable")
    assert condition.lastTransitionTime == rfc3339(world.now)
    assert world.status.phase is JobPhase.RECOVERING


def test_a_refusal_is_told_in_the_servers_words_and_waited_out() -> None:
    world = World(job_spec(3))
    world.settle()
    for slot in (0, 1):
        world.pod(slot)
    words = 'pods "job-worker-2-0" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2'
    world.refusal = Refusal("Refused", words, 4.0)
    world.settle()
    assert scheduled(world).message == f"1 of 3 pods can't be created: {words}"
    decision = world.plan()
    assert decision.create == ()
    assert decision.requeue_after_s == pytest.approx(4.0)
    world.refusal = Refusal("Refused", words, 0.0)
    assert [p.slot for p in world.plan().create] == [2]


def test_a_condition_stays_short() -> None:
    world = waiting(reason="Unschedulable", message="m" * 5000)
    world.settle()
    assert len(scheduled(world).message) <= 1000


def test_a_suspended_job_waits_for_no_place() -> None:
    world = waiting(reason="Unschedulable", message="no room")
    world.settle()
    world.spec = world.spec.model_copy(update={"suspend": True})
    world.settle()
    assert world.status.phase is JobPhase.SUSPENDED
    assert (scheduled(world).status, scheduled(world).reason) == ("False", "Suspended")
    assert not world.plan().intent


def test_a_job_whose_pods_would_be_refused_each_time_fails_with_the_reason() -> None:
    world = World(job_spec(3))
    world.settle()
    world.refusal = Refusal("ConfigError", "claim c is ReadWriteOnce", 1.0, fatal=True)
    world.settle()
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    assert (world.status.lastFailure.cause, world.status.lastFailure.message) == (
        "ConfigError",
        "claim c is ReadWriteOnce",
    )


# -- pendingDeadlineSeconds


def test_a_job_whose_image_cannot_be_pulled_fails_at_its_pending_deadline_with_the_reason() -> None:
    world = waiting(job_spec(pendingDeadlineSeconds=60), reason="ImagePullBackOff", message="Back-off")
    world.settle()
    world.now += 45
    assert world.plan().requeue_after_s == pytest.approx(15.0)
    world.now += 15
    decision = world.write()
    failure = world.status.lastFailure
    assert world.status.phase is JobPhase.FAILED
    assert failure is not None
    assert failure.cause == "ImageError"
    assert failure.message == (
        "the pods did not all run within pendingDeadlineSeconds (60 s): "
        "1 of 4 pods can't run: job-worker-2-0: ImagePullBackOff: Back-off"
    )
    assert [e.reason for e in decision.events] == ["Failed"]


def test_a_pod_that_never_finishes_starting_fails_too_and_says_where_to_look() -> None:
    world = waiting(job_spec(pendingDeadlineSeconds=60))
    world.now += 60
    world.write()
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.cause == "DeadlineExceeded"
    assert "kubectl describe pod job-worker-2-0" in world.status.lastFailure.message


def test_the_deadline_is_over_once_all_run_and_starts_anew_with_a_restart() -> None:
    world = running(job_spec(pendingDeadlineSeconds=60))
    world.now += 1000
    for slot in world.slots:
        world.obey(slot, step=500, resumed=0)
    assert not world.plan().intent
    world.pod(1, phase="Failed", exit_code=1)
    world.settle()
    world.pod(1, phase="Pending", reason="Unschedulable", message="no room", node="", running_s=0.0)
    world.settle()
    world.now += 59
    for slot in (0, 2, 3):
        world.agent(slot, silent_s=0.0)
    assert world.plan().status.phase is JobPhase.RECOVERING
    world.now += 1
    assert world.write().status.phase is JobPhase.FAILED


def test_agents_that_are_late_are_no_matter_of_the_pending_deadline() -> None:
    world = pending(job_spec(pendingDeadlineSeconds=60, recovery={"agentLostSeconds": 1000}))
    world.now += 100
    assert world.plan().status.phase is JobPhase.PENDING


def test_pods_that_were_created_are_not_counted_among_those_that_cannot_be() -> None:
    world = World(job_spec(2))
    world.settle()
    world.pod(0, phase="Pending", running_s=0.0)
    world.refusal = Refusal("Refused", "quota", 1.0)
    world.settle()
    assert scheduled(world).message == "1 of 2 pods can't be created: quota"


def test_a_refusal_is_over_once_all_pods_are_there() -> None:
    world = waiting(reason="Unschedulable", message="no room")
    world.refusal = Refusal("Refused", "quota", 1.0)
    world.settle()
    assert scheduled(world).reason == "Unschedulable"


def test_how_long_pods_find_no_place_counts_from_when_that_is_known() -> None:
    world = World(job_spec())
    world.settle()
    world.now += 60
    for slot in world.slots:
        world.pod(slot, phase="Pending", running_s=0.0, reason="Unschedulable", message="no room")
    world.settle()
    assert (scheduled(world).status, scheduled(world).lastTransitionTime) == ("False", rfc3339(world.now))


def test_running_pods_whose_agents_reach_no_operator_are_named_with_the_usual_reason() -> None:
    world = pending()
    for slot in world.slots:
        world.pod(slot, running_s=100.0)
    decision = world.write()
    assert [(event.type, event.reason) for event in decision.events] == [(EventType.WARNING, "AgentsSilent")]
    condition = scheduled(world)
    assert (condition.status, condition.reason) == ("Unknown", "AgentsSilent")
    assert condition.message.startswith("4 of 4 pods run, but the operator does not hear their agents (job-worker-0-0 ")
    assert "NetworkPolicy" in condition.message
    for slot in world.slots:
        world.pod(slot, running_s=500.0)
    assert world.plan().status == world.status


def test_silence_is_no_longer_told_when_the_agents_are_heard() -> None:
    world = pending()
    since = scheduled(world).lastTransitionTime
    for slot in world.slots:
        world.pod(slot, running_s=100.0)
    world.settle()
    world.now += 100
    for slot in world.slots:
        world.agent(slot, joined=False)  # the round does not open yet
    world.settle()
    condition = scheduled(world)
    assert (condition.status, condition.reason, condition.lastTransitionTime) == ("Unknown", "PodsStarting", since)


def test_agents_that_are_merely_starting_are_no_news() -> None:
    world = pending()
    assert world.plan().status == world.status
