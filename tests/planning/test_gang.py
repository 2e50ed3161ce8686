"""All pods or none: who holds places in vain lets go of them, and two who wait for each other don't for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.planning.test_pending import waiting
from tests.planning.world import World, job_spec, opened, running
from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.planning.facts.job_state import JobPhase, ReleasedStatus, Restarts
from trainmaster_operator.planning.facts.observation import NewPlaces, Observation, PodRecord, Refusal
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.placement import gang_release
from trainmaster_operator.planning.plan import plan


def partial(**spec: Any) -> World:
    world = waiting(job_spec(**spec), slots=(2, 3), reason="Unschedulable", message="no room")
    world.settle()
    return world


def released(world: World) -> World:
    world.now += 2 * world.spec.scheduling.releaseSeconds
    assert world.write().intent
    return world


def test_pods_that_hold_places_in_vain_are_given_back_and_come_again_later() -> None:
    world = released(partial())
    status = world.status
    assert (status.incarnations, status.phase, status.restarts) == ("1*4", JobPhase.PENDING, Restarts())
    assert status.released is not None
    assert status.released.times == 1
    decision = world.plan()
    assert len(decision.delete) == 4
    world.pods = {}
    decision = world.plan()
    assert decision.create == ()
    assert decision.requeue_after_s is not None
    assert 10.0 <= decision.requeue_after_s <= 30.0
    world.now += decision.requeue_after_s
    assert len(world.plan().create) == 4


def test_the_time_between_once_and_twice_the_wish_is_asked_for() -> None:
    due = partial(scheduling={"releaseSeconds": 50}, recovery={"agentLostSeconds": 1000}).plan().requeue_after_s
    assert due is not None
    assert 50.0 <= due <= 100.0


@pytest.mark.parametrize(
    "pods",
    [
        {slot: {"phase": "Pending", "reason": "Unschedulable", "node": ""} for slot in range(4)},  # nothing is held
        {2: {"phase": "Pending", "reason": "ImagePullBackOff", "node": "n"}},  # a place alone isn't lacking
        {2: {"phase": "Pending", "reason": "", "node": ""}},  # the scheduler hasn't said no
    ],
    ids=["none has a place", "an image", "new"],
)
def test_pods_are_kept_where_giving_them_back_helps_nobody(pods: dict[int, dict[str, Any]]) -> None:
    world = waiting(slots=())
    for slot, fields in pods.items():
        world.pod(slot, running_s=0.0, **fields)
    world.settle()
    world.now += 100_000
    assert not world.plan().intent


HOLD_S = 900


def told(world: World, **signs: float) -> World:
    """The same world, seen with signs that places appear."""

    class Seen(World):
        def observed(self) -> Observation:
            return replace(super().observed(), new_places=NewPlaces(**signs))

    return Seen(**vars(world))


def overdue(**spec: Any) -> World:
    """It has waited for twice as long as it says."""
    world = partial(**spec)
    world.now += 2 * HOLD_S
    return world


@pytest.mark.parametrize("sign", ["asked_s", "joined_s"])
def test_nothing_is_given_back_shortly_after_an_autoscaler_spoke_or_a_node_joined(sign: str) -> None:
    world = told(overdue(), **{sign: 100.0})
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s is not None
    assert decision.requeue_after_s <= gang_release.FRESH_S - 100.0
    assert told(world, **{sign: gang_release.FRESH_S}).plan().intent


def test_nothing_is_given_back_while_pods_of_the_job_find_places_however_long_it_takes() -> None:
    world = partial()
    for _ in range(20):
        world.now += HOLD_S / 2
        world.pod(0, placed_at=rfc3339(world.now - 10))
        assert not world.settle().intent
    world.now += gang_release.FRESH_S
    assert world.plan().intent


def test_an_autoscaler_that_tries_in_vain_holds_no_release_up_for_ever() -> None:
    world = partial()
    world.now += gang_release.SIGNS_COUNT_FOR * HOLD_S - 1
    assert not told(world, asked_s=1.0).plan().intent
    world.now += 2
    assert told(world, asked_s=1.0).plan().intent


def test_a_job_that_wants_to_let_go_soon_waits_no_longer_for_signs() -> None:
    world = partial(scheduling={"releaseSeconds": 50})
    world.now += 100
    assert not told(world, asked_s=49.0).plan().intent
    assert told(world, asked_s=50.0).plan().intent


def test_nothing_is_given_back_while_a_gate_holds_back_a_pod() -> None:
    world = overdue()
    world.pod(3, reason="SchedulingGated")
    world.settle()
    world.now += 100_000
    assert not world.plan().intent
    world.pod(3, reason="Unschedulable")
    world.settle()
    assert not world.plan().intent  # it is counted from here
    world.now += 2 * HOLD_S
    assert world.plan().intent


def test_pods_are_given_back_as_well_after_thousands_of_vain_attempts() -> None:
    world = overdue()
    world.status.released = ReleasedStatus(times=5000, retryAt=world.status.startTime)
    assert world.write().intent
    assert world.status.released is not None
    assert world.status.released.times == 5001


def test_pods_are_kept_while_only_a_spare_finds_no_place() -> None:
    spec = job_spec(workers={"replicas": 3, "spares": 1}, recovery={"agentLostSeconds": 1e6})
    world = waiting(spec, slots=(3,), reason="Unschedulable")
    for slot in (0, 1, 2):
        world.pod(slot, phase="Pending", running_s=0.0)  # Their image is pulled.
    world.settle()
    world.now += 100_000
    assert not world.plan().intent
    world.pod(2, node="", reason="Unschedulable")
    assert world.plan().intent


def test_a_job_may_hold_on_for_ever() -> None:
    world = partial(scheduling={"releaseSeconds": 0})
    world.now += 100_000
    assert not world.plan().intent


def test_a_quota_that_refuses_the_third_pod_frees_the_first_two() -> None:
    world = World(job_spec(3))
    world.settle()
    for slot in (0, 1):
        world.pod(slot, node="n")
    world.refusal = Refusal("Refused", "exceeded quota", 60.0)
    world.settle()
    released(world)
    assert {d.name for d in world.plan().delete} == {"job-worker-0-0", "job-worker-1-0"}


def test_a_running_job_is_never_taken_apart() -> None:
    world = opened()
    world.refusal = Refusal("Refused", "exceeded quota", 60.0)
    world.now += 1000
    for slot in world.slots:
        world.obey(slot, step=1, resumed=0)
    world.settle()
    assert world.status.incarnations == "0*4"


def test_survivors_of_a_failure_let_go_as_well_and_the_job_goes_on_where_it_was() -> None:
    world = running()
    world.pod(1, phase="Failed", exit_code=1)
    world.settle()
    for slot in world.slots:
        world.pod(slot, node=f"n{slot}")
    world.pod(1, phase="Pending", reason="Unschedulable", node="", running_s=0.0)
    world.settle()
    before = world.status
    released(world)
    assert (world.status.round, world.status.phase) == (before.round, JobPhase.RECOVERING)
    assert world.status.restarts == before.restarts
    assert world.status.incarnations == "2*4"


def test_complete_at_last_a_job_forgets_how_often_it_let_go() -> None:
    world = released(partial())
    world.pods, world.agents = {}, {}
    for slot in world.slots:
        world.pod(slot)
        world.agent(slot)
    world.settle()
    assert world.status.round == 1
    assert world.status.released is None


class Cluster:
    """Some places for pods, given to whoever asks first; jobs that plan in turn, second by second."""

    def __init__(self, places: int, uids: list[str], size: int) -> None:
        self.places, self.now = places, 1_700_000_000.0
        self.jobs = {uid: World(job_spec(size, scheduling={"releaseSeconds": 120})) for uid in uids}
        self.pods: dict[str, dict[int, PodRecord]] = {uid: {} for uid in uids}

    def second(self) -> None:
        self.now += 1.0
        for uid, world in self.jobs.items():
            for _ in range(4):
                pods = tuple(self.pods[uid][slot] for slot in sorted(self.pods[uid]))
                seen = Observation("job", "default", uid, 1, False, 1, pods, leading_s=1e6)
                decision = plan(world.spec, world.status, seen, self.now)
                world.status = decision.status
                for delete in decision.delete:
                    self.pods[uid] = {s: p for s, p in self.pods[uid].items() if p.name != delete.name}
                for create in decision.create:
                    name = f"{uid}-{create.slot}-{create.incarnation}"
                    record = PodRecord(name, name, "worker", create.slot, create.incarnation, "Pending")
                    self.pods[uid][create.slot] = record
                if not (decision.intent or decision.delete or decision.create):
                    break
        self.schedule()

    def schedule(self) -> None:
        waits = [(p.slot, uid) for uid in self.jobs for p in self.pods[uid].values() if p.node == ""]
        for slot, uid in sorted(waits):  # in turn, so that each gets its share
            pod = self.pods[uid][slot]
            used = sum(1 for pods in self.pods.values() for p in pods.values() if p.node)
            phase, node, reason = ("Running", "n", "") if used < self.places else ("Pending", "", "Unschedulable")
            self.pods[uid][slot] = PodRecord(
                pod.name, pod.uid, "worker", slot, pod.incarnation, phase, node=node, reason=reason, running_s=1.0
            )

    def complete(self) -> list[str]:
        return [
            uid
            for uid, world in self.jobs.items()
            if sum(1 for p in self.pods[uid].values() if p.node) == len(unpack_counts(world.status.incarnations)) > 0
        ]


@pytest.mark.parametrize("pair", range(20))
def test_two_jobs_that_each_got_half_do_not_wait_for_each_other_for_ever(pair: int) -> None:
    cluster = Cluster(places=6, uids=[f"a{pair}", f"b{pair}"], size=4)
    cluster.second()
    assert cluster.complete() == []
    for _ in range(3600):
        cluster.second()
        if done := cluster.complete():
            assert len(done) == 1
            del cluster.pods[done[0]], cluster.jobs[done[0]]  # it trains to its end, the other gets its turn
            break
    else:
        raise AssertionError("nobody let go")
    for _ in range(3600):
        cluster.second()
        if cluster.complete():
            return
    raise AssertionError("the second one never came back")
