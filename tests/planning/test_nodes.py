"""Which nodes new pods keep away from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.planning.world import NOW, World, job_spec, pending, running, verdict
from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.job_state import Failure, JobState
from trainmaster_operator.planning.facts.node_suspicion import HALF_LIFE_S, Mark, Suspicion, score
from trainmaster_operator.planning.facts.observation import NewPlaces, Observation, PodRecord
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.placement import avoided_nodes


def mark(cause: Cause = Cause.NODE_LOST, job: str = "other", at: float = NOW, id: str = "") -> Mark:
    return Mark(id or f"{job}/{cause.value}/{at}", job, cause.value, at)


def suspicion(count: int = 10, **marks: list[Mark]) -> Suspicion:
    return Suspicion(marks, count)


class Cluster(World):
    """A world whose operator suspects nodes."""

    suspicion: Suspicion = Suspicion({}, 10)

    def observed(self) -> Observation:
        return replace(super().observed(), suspicion=self.suspicion)


def on_nodes(world: World, known: Suspicion | None = None) -> Cluster:
    """The same world on nodes n0, n1, ..."""
    cluster = Cluster(**vars(world))
    cluster.suspicion = known or Suspicion({}, 10)
    for slot in cluster.slots:
        cluster.pod(slot, node=f"n{slot}")
    return cluster


@pytest.mark.parametrize(
    ("causes", "excluded"),
    [
        ([Cause.HARDWARE_FAULT], True),
        ([Cause.NODE_LOST], False),
        ([Cause.NODE_LOST, Cause.NODE_LOST], True),
        ([Cause.NODE_LOST, Cause.AGENT_LOST], True),
        ([Cause.AGENT_LOST, Cause.AGENT_LOST], False),
        ([Cause.REFUSED, Cause.REFUSED, Cause.REFUSED], True),
        ([Cause.CRASH] * 50, False),
        ([Cause.OUT_OF_MEMORY] * 50, False),
        ([Cause.CONFIG_ERROR] * 50, False),
    ],
)
def test_what_a_node_did_in_one_job_weighs_by_what_it_says_of_the_node(causes: list[Cause], excluded: bool) -> None:
    marks = [mark(cause, at=NOW - i) for i, cause in enumerate(causes)]
    known = suspicion(bad=marks)
    observed = replace(pending().observed(), suspicion=known)
    assert (avoided_nodes.avoid(job_spec(), JobState(), observed, NOW) == ["bad"]) is excluded


def test_crashes_count_when_they_repeat_on_a_node_and_in_several_jobs() -> None:
    assert score([mark(Cause.CRASH)], NOW) == 0
    assert score([mark(Cause.CRASH, job=f"j{i}") for i in range(50)], NOW) == 0
    twice = [mark(Cause.CRASH, job="a", at=NOW), mark(Cause.CRASH, job="a", at=NOW - 1)]
    assert score(twice, NOW) == pytest.approx(0.2, rel=1e-3)
    often = [mark(Cause.CRASH, job=job, at=NOW - i) for job in "abc" for i in range(5)]
    assert score(often, NOW) == pytest.approx(1.2)


def test_suspicion_decays() -> None:
    marks = [mark(Cause.HARDWARE_FAULT)]
    assert score(marks, NOW) == 1
    assert score(marks, NOW + HALF_LIFE_S) == pytest.approx(0.5)
    assert score(marks, NOW - 60) == 1  # the clock of another leader


@pytest.mark.parametrize(("count", "most"), [(0, 0), (1, 0), (2, 1), (9, 1), (10, 2), (1000, 32)])
def test_only_a_share_of_the_nodes_is_kept_away_from(count: int, most: int) -> None:
    marks = {f"n{i:03}": [mark(Cause.HARDWARE_FAULT, at=NOW - i)] for i in range(50)}
    observed = replace(pending().observed(), suspicion=Suspicion(marks, count))
    kept = avoided_nodes.avoid(job_spec(), JobState(), observed, NOW)
    assert kept == [f"n{i:03}" for i in range(most)]  # the most suspect ones


def test_a_job_may_want_none_of_this() -> None:
    known = suspicion(bad=[mark(Cause.HARDWARE_FAULT)])
    observed = replace(pending().observed(), suspicion=known)
    spec = job_spec(recovery={"nodes": {"avoid": False}})
    assert avoided_nodes.avoid(spec, JobState(), observed, NOW) == []


def test_a_new_job_starts_away_from_what_others_suffered_from() -> None:
    world = Cluster(spec=job_spec())
    world.suspicion = suspicion(bad=[mark(Cause.HARDWARE_FAULT)])
    world.write()
    assert world.status.avoidNodes == ["bad"]


def test_a_failure_and_the_choice_that_follows_are_one_write() -> None:
    world = on_nodes(running())
    world.agent(2, verdict=verdict(rank=2, cause=Cause.HARDWARE_FAULT), verdict_age_s=0.1)
    decision = world.write()
    assert decision.intent
    assert world.status.incarnations == "0*2,1,0"
    assert world.status.avoidNodes == ["n2"]


def test_a_successor_keeps_away_from_a_node_that_answers_nobody() -> None:
    """Before the cluster knows it."""
    world = on_nodes(running())
    world.agent(2, silent_s=20.0)
    world.write()
    assert (world.status.incarnations, world.status.avoidNodes) == ("0*2,1,0", ["n2"])


def test_an_agent_that_ended_says_little_of_its_node() -> None:
    world = on_nodes(running())
    world.pod(2, phase="Failed")
    world.write()
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.cause == Cause.AGENT_LOST.value
    assert (world.status.incarnations, world.status.avoidNodes) == ("0*2,1,0", [])


def test_the_same_failure_counts_once_when_the_ledger_knows_it_too() -> None:
    world = on_nodes(running())
    world.agent(2, silent_s=5.0)
    world.pod(2, node_lost=True)
    world.write()
    assert world.status.avoidNodes == []
    reason = avoided_nodes.of_failure("uid", world.status)
    assert reason is not None
    observed = replace(world.observed(), suspicion=suspicion(n2=[reason[1]]))
    assert avoided_nodes.avoid(world.spec, world.status, observed, world.now) == []


def test_what_stands_in_the_status_changes_with_incarnations_only() -> None:
    world = on_nodes(running())
    world.suspicion = suspicion(bad=[mark(Cause.HARDWARE_FAULT)])
    world.agent(2, verdict=verdict(rank=2), verdict_age_s=0.1)
    world.write()
    assert world.status.restarts.inPlace == 1
    assert world.status.avoidNodes == []


def rejected(world: World, reason: str) -> None:
    world.pod(1, phase="Failed", rejected=True, reason=reason, node="n1")


@pytest.mark.parametrize(
    ("reason", "counts"),
    [("UnexpectedAdmissionError", True), ("OutOfnvidia.com/gpu", True), ("NodeShutdown", False), ("Evicted", False)],
)
def test_pods_that_a_node_turns_away_tell_of_broken_devices(reason: str, counts: bool) -> None:
    pod = PodRecord("p", "uid-of-pod", "worker", 1, 0, "Failed", node="n1", reason=reason, rejected=True)
    assert (avoided_nodes.of_rejection("uid", pod, NOW) is not None) is counts


def test_the_third_pod_that_a_node_turned_away_is_the_last_one() -> None:
    world = on_nodes(pending())
    world.suspicion = suspicion(n1=[mark(Cause.REFUSED, at=NOW - 3), mark(Cause.REFUSED, at=NOW - 2)])
    rejected(world, "UnexpectedAdmissionError")
    world.write()
    assert world.status.avoidNodes == ["n1"]


def unplaced(**fields: Any) -> Cluster:
    """Slot 2 was replaced away from a node, and finds no other place."""
    world = on_nodes(running())
    world.agent(2, verdict=verdict(rank=2, cause=Cause.HARDWARE_FAULT), verdict_age_s=0.1)
    world.settle()
    message = "0/4 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    known = {"phase": "Pending", "reason": "Unschedulable", "message": message, "node": "", "keeps_away": True}
    world.pod(2, **{**known, **fields})
    return world


@pytest.mark.parametrize(
    "message",
    [
        "0/4 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
        "0/4 nodes are available: 4 Insufficient cpu.",  # an autoscaler would help, but not a pod that names nodes
    ],
)
def test_a_pod_that_keeps_away_and_finds_no_place_may_go_anywhere_at_once(message: str) -> None:
    world = unplaced(message=message)
    decisions = [world.write() for _ in range(2)]
    assert world.status.avoidNodes == []
    assert world.status.incarnations == "0*2,2,0"
    assert "NodesAllowed" in [event.reason for decision in decisions for event in decision.events]


def test_a_spare_that_keeps_away_and_finds_no_place_may_go_anywhere_while_the_others_train() -> None:
    spec = job_spec()
    world = on_nodes(running(spec.model_copy(update={"workers": spec.workers.model_copy(update={"spares": 1})})))
    world.status = world.status.model_copy(update={"avoidNodes": ["n9"]})
    world.pod(4, phase="Pending", reason="Unschedulable", node="", keeps_away=True, running_s=0.0)
    world.settle()
    assert (world.status.incarnations, world.status.avoidNodes) == ("0*4,1", [])
    assert world.status.roundStore


def test_a_pod_that_waits_beside_a_tainted_node_is_left_alone() -> None:
    world = unplaced(keeps_away=False)
    world.settle()
    world.now += 600
    world.settle()
    assert (world.status.avoidNodes, world.status.incarnations) == (["n2"], "0*2,1,0")


def beside_tainted(**signs: float) -> Cluster:
    """Slot 2 finds no place beside a node that is tainted."""
    world = unplaced(keeps_away=False)

    class Seen(Cluster):
        def observed(self) -> Observation:
            return replace(super().observed(), tainted=("n2",), new_places=NewPlaces(**signs))

    fields = dict(vars(world))
    known = fields.pop("suspicion")
    seen = Seen(**{**fields, "spec": job_spec(scheduling={"releaseSeconds": 0})})
    seen.suspicion = known
    seen.settle()
    return seen


def test_a_tainted_node_may_be_used_when_no_other_place_appears() -> None:
    world = beside_tainted()
    world.now += avoided_nodes.PATIENCE_S - 1
    assert world.settle().requeue_after_s == pytest.approx(1.0)
    world.now += 1
    decision = world.write()
    assert [event.reason for event in decision.events] == ["NodesAllowed"]
    assert (world.status.avoidNodes, world.status.avoidedInVain) == (["n2"], True)
    assert world.status.incarnations == "0*2,1,0", "the pod that waits need not be made again"
    world.now += 10 * avoided_nodes.PATIENCE_S
    assert not world.plan().intent


@pytest.mark.parametrize("sign", ["asked_s", "joined_s"])
def test_a_tainted_node_is_left_alone_while_an_autoscaler_brings_others(sign: str) -> None:
    world = beside_tainted(**{sign: 10.0})
    world.now += 10 * avoided_nodes.PATIENCE_S
    assert not world.plan().intent


def test_until_the_next_round_no_other_pod_keeps_away_in_vain() -> None:
    world = unplaced()
    world.settle()
    world.pods[2] = replace(world.pods[2], name="job-worker-2-2", uid="new", incarnation=2, keeps_away=False)
    world.pod(1, phase="Failed", exit_code=1, node="n1")  # while the round forms
    world.settle()
    assert world.status.incarnations == "0,1,2,0"
    assert world.status.avoidNodes == []
    for slot in world.slots:
        world.pod(slot, phase="Running", node=f"m{slot}", reason="", running_s=1.0)
        world.agent(slot)
    world.settle()
    assert world.status.roundStore
    assert not world.status.avoidedInVain


def test_a_node_that_answers_nobody_is_avoided_however_few_nodes_are_known() -> None:
    world = on_nodes(running(), Suspicion({}, 0))
    world.agent(2, silent_s=20.0)
    world.write()
    assert world.status.avoidNodes == ["n2"]


def test_a_failure_without_a_node_blames_none() -> None:
    failure = Failure(cause=Cause.NODE_LOST.value, time=rfc3339(NOW))
    assert avoided_nodes.of_failure("uid", JobState(lastFailure=failure)) is None
