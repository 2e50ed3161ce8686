"""Slots, incarnations, and the pods that ought to be there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.planning.world import World, job_spec, opened, pending, running, script_spec, verdict
from trainmaster.agent.shell import self_fencing
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.observation import EventType, PodToCreate, StandbyAnswers
from trainmaster_operator.planning.lifecycle.job_beginning import DamagedStatus
from trainmaster_operator.planning.placement import replaced_pods


def test_a_new_job_gets_its_first_status_before_any_pod() -> None:
    world = World(job_spec(3))
    first = world.write()
    assert first.intent
    assert (first.create, first.delete) == ((), ())
    assert (first.status.phase, first.status.incarnations) == (JobPhase.PENDING, "0*3")
    assert world.plan().create == tuple(PodToCreate("worker", slot, 0) for slot in range(3))


@pytest.mark.parametrize(
    ("pods", "ranks", "words"),
    [(1, 1, "1 pod with 1 rank;"), (2, 1, "2 pods with 1 rank each;"), (2, 4, "2 pods with 4 ranks each;")],
)
def test_the_size_of_a_new_job_is_told_in_the_right_number(pods: int, ranks: int, words: str) -> None:
    (event,) = World(job_spec(pods, ranks)).write().events
    assert event.message.startswith(words)


@pytest.mark.parametrize(("ranks", "words"), [(1, "round 1: 1 rank starts"), (2, "round 1: 2 ranks start")])
def test_the_ranks_of_a_new_round_are_told_in_the_right_number(ranks: int, words: str) -> None:
    world = pending(job_spec(1, ranks))
    world.agent(0)
    assert [event.message for event in world.write().events] == [words]


def test_only_missing_pods_are_created() -> None:
    world = pending()
    del world.pods[2]
    assert world.plan().create == (PodToCreate("worker", 2, 0),)
    assert not world.plan().intent


def test_a_new_leader_writes_its_epoch_before_it_creates_pods_of_an_earlier_leaders_incarnations() -> None:
    world = pending()
    del world.pods[2]
    world.epoch += 1
    first = world.write()
    assert (first.intent, first.create, first.events) == (True, (), ())
    assert first.status.leaderEpoch == world.epoch
    assert world.plan().create == (PodToCreate("worker", 2, 0),)


def test_a_pod_that_vanished_after_its_ranks_were_done_is_not_created_again_in_the_same_round() -> None:
    world = running()
    world.agent(2, done=True)
    del world.pods[2]
    decision = world.plan()
    assert (decision.intent, decision.create) == (False, ())


def test_a_pod_of_a_lower_incarnation_is_deleted_at_once_and_its_successor_waits_until_it_is_gone() -> None:
    world = running()
    old = replace(world.pods[1], phase="Failed", exit_code=137)
    world.pods[1] = old
    assert world.write().intent
    decision = world.plan()
    assert [(d.name, d.uid, d.grace_s) for d in decision.delete] == [(old.name, old.uid, 0.0)]
    assert decision.create == ()
    del world.pods[1]
    assert world.plan().create == (PodToCreate("worker", 1, 1),)


@pytest.mark.parametrize("spec", [job_spec(), script_spec()], ids=["fenced", "script"])
def test_a_living_pod_gets_the_grace_of_its_template_so_that_its_end_is_confirmed(spec: JobSpec) -> None:
    world = running(spec)
    world.agent(1, silent_s=30.0)
    assert world.write().intent
    assert [(d.grace_s, d.replaced) for d in world.plan().delete] == [(None, True)]
    world.pods[1] = replace(world.pods[1], deleting=True, deleting_s=0.1)
    assert (world.plan().delete, world.plan().create) == ((), ())


@pytest.mark.parametrize(("given", "grace_s"), [(0, 1.0), (1, None), (600, None)])
def test_a_living_pod_is_never_removed_without_its_kubelet_whatever_its_template_says(
    given: int, grace_s: float | None
) -> None:
    spec = job_spec()
    template = {"spec": {"terminationGracePeriodSeconds": given}}
    spec = spec.model_copy(update={"workers": spec.workers.model_copy(update={"template": template})})
    world = running(spec)
    world.agent(1, silent_s=30.0)
    world.write()
    assert [d.grace_s for d in world.plan().delete] == [grace_s]


def test_a_pod_whose_end_takes_long_is_not_waited_for_and_not_removed_if_the_storage_fences_it_off() -> None:
    world = running()
    world.agent(1, silent_s=30.0)
    world.write()
    world.pods[1] = replace(world.pods[1], deleting=True, deleting_s=2.0)
    decision = world.plan()
    assert decision.requeue_after_s == pytest.approx(3.0)
    assert (decision.delete, decision.create) == ((), ())
    world.pods[1] = replace(world.pods[1], deleting_s=5.0)
    decision = world.plan()
    assert (decision.delete, decision.create) == ((), (PodToCreate("worker", 1, 1),))


@pytest.mark.parametrize(
    ("node_lost", "deleting_s", "removed"),
    [(False, 5000.0, False), (True, 19.0, False), (True, 20.0, True)],
    ids=["a kubelet answers", "its agent may have ranks", "its agent has ended them"],
)
def test_a_script_is_removed_only_when_its_agent_must_have_ended_its_ranks(
    node_lost: bool, deleting_s: float, removed: bool
) -> None:
    world = running(script_spec())
    world.agent(1, silent_s=30.0)
    world.write()
    gone = {"deleting": True, "node_lost": node_lost, "node_lost_s": 10.0 * node_lost}
    world.pods[1] = replace(world.pods[1], deleting_s=deleting_s, **gone)
    assert [d.grace_s for d in world.plan().delete] == [0.0] * removed


def lost(spec: JobSpec, *, node_lost: bool = True) -> World:
    """A job whose agent in slot 1 is silent, and whose pod there is being deleted."""
    world = running(spec)
    world.agent(1, silent_s=30.0)
    world.write()
    del world.agents[1]
    world.pods[1] = replace(world.pods[1], deleting=True, deleting_s=1.0, unanswered_s=11.0, node_lost=node_lost)
    return world


def test_the_successor_of_a_scripts_pod_on_a_lost_node_starts_before_the_old_ranks_are_known_to_be_dead() -> None:
    assert [(pod.slot, pod.incarnation) for pod in lost(script_spec()).plan().create] == [(1, 1)]


def test_the_successor_of_a_scripts_pod_waits_while_the_kubelet_of_the_old_one_answers() -> None:
    assert lost(script_spec(), node_lost=False).plan().create == ()


@pytest.mark.parametrize(
    "more",
    [
        {"initContainers": [{"name": "prepare", "image": "x"}]},
        {"containers": [{"name": "trainer", "image": "x"}, {"name": "sidecar", "image": "x"}]},
    ],
    ids=["an init container", "a sidecar"],
)
def test_the_successor_waits_for_the_proof_when_its_template_starts_more_than_the_agent(more: dict[str, Any]) -> None:
    spec = script_spec()
    template = {"spec": {"containers": [{"name": "trainer", "image": "x"}], **more}}
    spec = spec.model_copy(update={"workers": spec.workers.model_copy(update={"template": template})})
    assert lost(spec).plan().create == ()


def test_no_round_of_a_script_opens_with_the_successor_until_the_pod_on_the_lost_node_is_removed() -> None:
    """Its ranks may still write, whatever is ready elsewhere."""
    world = lost(script_spec())
    old = world.pods.pop(1)
    world.pod(1)
    world.agent(1)
    world.pods[9] = old
    for _ in range(3):
        world.write()
        assert world.status.roundStore == ""
    del world.pods[9]
    world.write()
    assert world.status.roundStore


def test_a_scripts_agent_ends_its_ranks_before_the_operator_takes_them_for_dead() -> None:
    assert self_fencing.LEASE_S + self_fencing.LOOK_S + self_fencing.CONNECT_S < replaced_pods.SCRIPT_FORCE_AFTER_S


@pytest.mark.parametrize(("unanswered_s", "removed"), [(19.0, False), (20.0, True)])
def test_how_long_a_scripts_agent_is_waited_for_counts_from_its_last_answer(unanswered_s: float, removed: bool) -> None:
    """It was silent before its pod was given up, and may have been answered after somebody deleted the pod."""
    world = running(script_spec())
    world.agent(1, silent_s=30.0)
    world.write()
    gone = {"deleting": True, "node_lost": True, "node_lost_s": 10.0, "unanswered_s": unanswered_s}
    for deleting_s in (1.0, 100.0):
        world.pods[1] = replace(world.pods[1], deleting_s=deleting_s, **gone)
        decision = world.plan()
        assert [d.grace_s for d in decision.delete] == [0.0] * removed
        if not removed:
            assert decision.requeue_after_s == pytest.approx(1.0)


@pytest.mark.parametrize(("node_lost_s", "removed"), [(9.0, False), (10.0, True)])
def test_a_scripts_agent_that_only_the_api_server_kept_alive_is_waited_for_from_the_loss_of_its_node(
    node_lost_s: float, removed: bool
) -> None:
    """No operator has answered it for a minute, but until its node was lost it may have reached the API server."""
    world = running(script_spec())
    world.agent(1, silent_s=60.0)
    world.write()
    gone = {"deleting": True, "deleting_s": 40.0, "unanswered_s": 60.0, "node_lost": True}
    world.pods[1] = replace(world.pods[1], node_lost_s=node_lost_s, **gone)
    decision = world.plan()
    assert [d.grace_s for d in decision.delete] == [0.0] * removed
    if not removed:
        assert decision.requeue_after_s == pytest.approx(1.0)


def silent_for_long(spec: JobSpec) -> World:
    """A job with a pod on a lost node, which neither a leader nor the API server can have kept alive until now."""
    world = running(spec)
    world.agent(1, silent_s=60.0)
    world.write()
    gone = {"deleting": True, "deleting_s": 40.0, "unanswered_s": 60.0, "node_lost": True, "node_lost_s": 40.0}
    world.pods[1] = replace(world.pods[1], node="n1", **gone)
    return world


@pytest.mark.parametrize(
    ("answers", "wait_s"),
    [
        (StandbyAnswers(-200.0, "standby-1"), replaced_pods.STANDBY_LOOK_S),
        (StandbyAnswers(0.0), 20.0),
        (StandbyAnswers(19.0), 1.0),
        (StandbyAnswers(20.0), 0.0),
    ],
    ids=["a standby may answer it now", "none is known", "one may have answered lately", "none has for long"],
)
def test_a_scripts_agent_is_waited_for_that_a_standby_may_keep_alive(answers: StandbyAnswers, wait_s: float) -> None:
    world = silent_for_long(script_spec())
    world.standby_answers = answers
    world.settle()
    decision = world.plan()
    assert [d.grace_s for d in decision.delete] == [0.0] * (not wait_s)
    if wait_s:
        assert decision.requeue_after_s == pytest.approx(wait_s)


def test_standbys_do_not_matter_for_pods_of_our_own_loop() -> None:
    world = silent_for_long(job_spec())
    world.standby_answers = StandbyAnswers(-200.0, "standby-1")
    assert [d.grace_s for d in world.plan().delete] == [0.0]


def test_a_script_says_which_standby_it_waits_for() -> None:
    world = silent_for_long(script_spec())
    world.standby_answers = StandbyAnswers(-200.0, "standby-1")
    decision = world.write()
    (event,) = decision.events
    assert (event.type, event.reason) == (EventType.WARNING, "StandbyCutOff")
    assert event.message.startswith(
        "pod job-worker-1-0 on the lost node n1 is kept, because its ranks may run: the operator's pod standby-1 does "
        "not reach the API server"
    )
    told = next(c for c in world.status.conditions if c.type == "Scheduled")
    assert (told.status, told.reason, told.message) == ("Unknown", "StandbyCutOff", event.message)
    assert world.settle().events == ()
    world.standby_answers = StandbyAnswers(1.0)
    world.settle()
    assert next(c for c in world.status.conditions if c.type == "Scheduled").reason == "PodsStarting"


def test_a_pod_whose_sidecars_run_on_is_not_taken_for_gone() -> None:
    world = running()
    world.pod(1, phase="Failed", exit_code=1, lingers=True)
    world.write()
    assert [d.grace_s for d in world.plan().delete] == [None]


def test_a_pod_newer_than_the_status_is_left_alone() -> None:
    world = opened()
    world.pods[1] = replace(world.pods[1], incarnation=7)
    world.status = world.status.model_copy(update={"roundStore": ""})
    decision = world.plan()
    assert (decision.delete, decision.create) == ((), ())


def test_a_job_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    world = running()
    world.deleting = True
    world.agent(2, verdict=verdict())
    decision = world.plan()
    assert (decision.status, decision.create, decision.delete) == (world.status, (), ())


def test_a_leader_whose_epoch_is_over_decides_nothing() -> None:
    world = running()
    world.status = world.status.model_copy(update={"leaderEpoch": 5})
    world.agent(2, verdict=verdict())
    assert world.plan().status == world.status


@pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.FAILED])
def test_a_finished_job_whose_status_lacks_fields_never_starts_again(phase: JobPhase) -> None:
    world = World(job_spec())
    world.status = JobState(phase=phase)
    decision = world.plan()
    assert (decision.status, decision.intent, decision.create) == (world.status, False, ())


def test_a_job_that_was_started_and_lost_its_status_is_not_started_again() -> None:
    world = World(job_spec())
    world.status = JobState(phase=JobPhase.RUNNING, observedGeneration=3)
    with pytest.raises(DamagedStatus, match=r"status\.internal\.incarnations is missing although the job was started"):
        world.plan()
