"""Agents that fell silent."""

from __future__ import annotations

import pytest

from tests.planning.world import World, job_spec, pending, running, verdict
from trainmaster.contract.wire import Cause
from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.planning.facts.job_state import JobPhase


def test_an_agent_that_is_silent_for_too_long_loses_its_pod() -> None:
    world = running()
    world.agent(2, silent_s=19.0)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(1.0)
    world.agent(2, silent_s=20.0)
    world.write()
    assert world.status.incarnations == "0*2,1,0"
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.cause == Cause.AGENT_LOST.value
    assert world.status.restarts.pod == 1


def test_a_pod_that_reports_but_has_not_joined_is_not_lost_and_the_first_round_waits_for_it() -> None:
    world = pending(job_spec(2))
    for slot in world.slots:
        world.pod(slot, running_s=60.0)
        world.agent(slot)
    world.agent(1, joined=False, next_store=None, warming=True)
    decision = world.plan()
    assert (decision.intent, decision.status.round) == (False, 0)
    world.agent(1, joined=True)
    world.write()
    assert (world.status.round, world.status.restarts.pod) == (1, 0)


@pytest.mark.parametrize(
    ("slots", "silent", "lost"), [(4, 1, True), (4, 2, False), (7, 2, True), (1, 1, True), (2, 2, False)]
)
def test_when_many_are_silent_together_we_suspect_ourselves(slots: int, silent: int, lost: bool) -> None:
    world = running(job_spec(slots))
    for slot in range(silent):
        world.agent(slot, silent_s=21.0 + slot)
    decision = world.plan()
    assert decision.intent is lost
    if not lost:
        assert decision.requeue_after_s is not None


def test_agents_that_follow_into_silence_are_part_of_the_same_outage() -> None:
    world = running()
    world.agent(0, silent_s=20.0)
    world.agent(1, silent_s=12.0)
    assert not world.plan().intent


def test_agents_that_report_seldom_since_there_are_so_many_may_be_silent_for_longer() -> None:
    world = running()
    world.report_interval_s = 6.0
    world.agent(2, silent_s=23.9)
    assert not world.plan().intent
    world.agent(2, silent_s=24.0)
    assert world.plan().intent


def test_a_node_that_does_not_answer_either_makes_a_short_silence_enough() -> None:
    world = running()
    world.agent(2, silent_s=2.0)
    world.pod(2, node_lost=True, node="n3")
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(3.0)
    world.agent(2, silent_s=5.0)
    world.write()
    failure = world.status.lastFailure
    assert failure is not None
    assert (failure.cause, failure.node) == (Cause.NODE_LOST.value, "n3")
    assert (world.status.incarnations, world.status.restarts.free) == ("0*2,1,0", 1)
    assert [(d.name, d.grace_s) for d in world.plan().delete] == [("job-worker-2-0", 0.0)]


def test_a_pod_that_a_taint_deletes_from_a_lost_node_is_replaced_for_free() -> None:
    world = running()
    world.agent(2, silent_s=300.0)
    world.pod(2, deleting=True, deleting_s=1.0, disruption="DeletionByTaintManager", node_lost=True)
    world.write()
    failure = world.status.lastFailure
    assert failure is not None
    assert (failure.cause, world.status.restarts.free) == (Cause.NODE_LOST.value, 1)
    assert [d.grace_s for d in world.plan().delete] == [0.0]


def test_a_node_whose_kubelet_is_silent_keeps_an_agent_that_speaks() -> None:
    world = running()
    world.pod(2, node_lost=True)
    assert not world.plan().intent


@pytest.mark.parametrize(
    ("nodes", "lost"),
    [
        ({0: "a", 1: "a", 2: "b", 3: "b"}, {"a"}),  # half of the agents, but of one node
        ({0: "a", 1: "a", 2: "a", 3: "a"}, {"a"}),
        ({0: "a", 1: "b", 2: "c", 3: "d"}, {"a", "b", "c"}),
    ],
)
def test_all_that_lost_nodes_held_is_replaced_together(nodes: dict[int, str], lost: set[str]) -> None:
    world = running()
    for slot, node in nodes.items():
        world.pod(slot, node=node, node_lost=node in lost)
        world.agent(slot, silent_s=6.0 if node in lost else 0.0)
    world.write()
    counts = unpack_counts(world.status.incarnations)
    assert counts == [int(nodes[slot] in lost) for slot in world.slots]


def test_when_no_node_answers_it_is_the_control_plane_that_is_lost() -> None:
    world = running()
    for slot, node in enumerate("abcd"):
        world.pod(slot, node=node, node_lost=True)
        world.agent(slot, silent_s=6.0)
    assert not world.plan().intent


@pytest.mark.parametrize(
    ("deleting", "words"),
    [
        (True, "pod job-worker-1-0 ended with exit code 90 after it was deleted"),
        (False, "pod job-worker-1-0 ended with exit code 90"),
    ],
)
def test_a_pod_that_ended_because_somebody_deleted_it_is_told_so(deleting: bool, words: str) -> None:
    world = running()
    world.pod(1, phase="Failed", exit_code=90, deleting=deleting)
    world.write()
    assert world.status.lastFailure is not None
    assert (world.status.lastFailure.cause, world.status.lastFailure.message) == ("Preempted", words)


def test_proof_counts_however_many_are_silent() -> None:
    world = running()
    for slot in world.slots:
        world.agent(slot, silent_s=30.0)
    world.pod(1, phase="Failed", exit_code=137)
    world.write()
    assert world.status.incarnations == "0,1,0*2"


@pytest.mark.parametrize(
    ("leading_s", "running_s", "lost"),
    [(5.0, 500.0, False), (500.0, 5.0, False), (500.0, 21.0, True), (500.0, 0.0, False)],
)
def test_an_agent_never_heard_is_given_up_only_after_it_had_time_to_speak(
    leading_s: float, running_s: float, lost: bool
) -> None:
    world = running()
    del world.agents[2]
    world.leading_s = leading_s
    world.pod(2, running_s=running_s)
    assert world.plan().intent is lost


def test_an_operator_that_restarted_changes_nothing_before_it_has_heard_the_agents() -> None:
    world = running()
    agents, world.agents = world.agents, {}
    world.epoch, world.leading_s = 2, 0.0
    for slot in world.slots:
        world.pod(slot, running_s=0.5)
    decision = world.plan()
    assert (decision.intent, decision.create, decision.delete) == (False, (), ())
    assert decision.status.model_copy(update={"workers": world.status.workers, "leaderEpoch": 1}) == world.status
    world.agents = agents
    assert not world.plan().intent


def test_a_pod_that_waits_for_a_node_or_an_image_is_waited_for() -> None:
    world = World()
    world.settle()
    for slot in world.slots:
        world.pod(slot, phase="Pending", reason="Unschedulable", running_s=0.0)
    world.settle()
    world.now += 10_000
    decision = world.plan()
    assert (decision.intent, decision.create, decision.requeue_after_s) == (False, (), None)


def test_a_pod_that_vanishes_before_the_round_opens_is_created_again() -> None:
    world = pending()
    del world.pods[1]
    decision = world.plan()
    assert not decision.intent
    assert [p.slot for p in decision.create] == [1]


def test_what_an_agent_said_last_counts_after_its_pod_has_vanished() -> None:
    world = running()
    for slot in world.slots:
        world.agent(slot, done=True)
    del world.pods[1]
    world.write()
    assert world.status.phase is JobPhase.SUCCEEDED


def test_a_large_job_reports_less_often_and_is_given_more_time() -> None:
    world = running(job_spec(2000, training={**{"data": {"path": "x"}, "steps": 100}, "batch": {"global": 2000}}))
    world.agent(2, silent_s=39.0)
    assert not world.plan().intent
    world.agent(2, silent_s=40.0)
    assert world.plan().intent


def test_a_rank_failure_on_a_silent_agent_is_known_from_its_last_report() -> None:
    world = running()
    world.agent(2, verdict=verdict(), silent_s=3.0)
    world.write()
    assert world.status.restarts.inPlace == 1
