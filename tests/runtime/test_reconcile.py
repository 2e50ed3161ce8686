"""One pass: intent first, then acts; and what happens when something refuses."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from simulation.virtual.cluster_faults import Rates
from simulation.virtual.faulty_cluster import FaultyCluster
from tests.runtime.fakes import chance, job, pod
from tests.stored import flat_status
from trainmaster.contract.wire import Directive, DirectiveState, Identity, Report
from trainmaster_operator.cluster.port import EVENT, JOB, LEASE, POD, SERVICE, ApiError
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.manifests.job_pod import pod_name, render_pod
from trainmaster_operator.manifests.services import build_service
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.observation import (
    Decision,
    EventType,
    PlannedEvent,
    PodToCreate,
    PodToDelete,
)
from trainmaster_operator.runtime.leader.lease import LeaseSettings, NotLeading
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.reconcile import Policies
from trainmaster_operator.runtime.virtual_clock import run_virtual


def nothing(spec, status, observed, now):
    return Decision(status)


def directives(spec, status, observed):
    return lambda slot: Directive(observed.epoch, DirectiveState.WAIT, status.round, f"tag {status.round}")


class Spy(FaultyCluster):
    """Counts calls by verb and kind, leases and events left out, and refuses what `refusals` names."""

    def __init__(self, inner, **options):
        super().__init__(inner, chance(), **options)
        self.calls: list[str] = []
        self.refusals: dict[str, ApiError] = {}

    async def get(self, kind, namespace, name):
        if kind != LEASE:
            self.calls.append(f"get {kind}")
        return await super().get(kind, namespace, name)

    async def _write(self, verb, kind, name, call):
        if kind not in (LEASE, EVENT):
            self.calls.append(f"{verb} {kind}")
        if verb in self.refusals:
            raise self.refusals[verb]
        return await super()._write(verb, kind, name, call)


@asynccontextmanager
async def operating(plan, jobs=("job",), tell=directives, store=None, **options):
    """`store`: one that an operator before has left behind, with all its jobs."""
    if store is None:
        store = MemoryStore()
        for name in jobs:
            store.create(JOB, job(name))
    spy = Spy(MemoryCluster(store), **options)
    operator = Operator(
        spy,
        asyncio.get_running_loop().clock,
        chance(),
        Settings(operator_url="http://o", identity="me", lease=LeaseSettings(takeover=True)),
        Policies(plan, tell, render_pod, build_service, pod_name),
    )
    running = asyncio.create_task(operator.run())
    yield store, spy, operator, running
    operator.stop()
    await asyncio.wait([running], timeout=60)
    assert running.done()


def status(store, name="job"):
    return flat_status(store.find(JOB, "space", name).get("status"))


def conditions(store, name="job"):
    return {c["type"]: c for c in status(store, name).get("conditions") or []}


def test_intent_is_written_before_anything_is_done_and_then_done_in_the_same_pass():
    def plan(spec, status, observed, now):
        if status.round == 0:
            event = PlannedEvent(EventType.NORMAL, "Opened", "round 1")
            return Decision(status.model_copy(update={"round": 1}), intent=True, events=(event,))
        return Decision(status, create=() if observed.pods else (PodToCreate("worker", 0, 0),))

    async def main():
        async with operating(plan) as (store, spy, _, _):
            await asyncio.sleep(1)
            assert spy.calls == [
                "get DistributedTrainingJob",
                "update_status DistributedTrainingJob",
                "get Service",
                "apply Service",
                "create Pod",
            ]
            assert status(store)["round"] == 1
            assert store.find(POD, "space", "job-worker-0-0")["metadata"]["ownerReferences"][0]["controller"]
            assert store.find(SERVICE, "space", "job")
            (told,) = store.list(EVENT).items
            assert (told["reason"], told["involvedObject"]["name"]) == ("Opened", "job")

    run_virtual(main())


def test_events_are_not_told_when_the_write_fails():
    def plan(spec, status, observed, now):
        event = PlannedEvent(EventType.NORMAL, "Opened", "round 1")
        return Decision(
            status.model_copy(update={"round": 1}), intent=True, events=(event,) if status.round == 0 else ()
        )

    async def main():
        async with operating(plan, rates=Rates(fail=1.0)) as (store, spy, _, _):
            await asyncio.sleep(5)
            assert store.list(EVENT).items == []
            spy.rates = Rates()
            await asyncio.sleep(10)
            assert len(store.list(EVENT).items) == 1

    run_virtual(main())


def test_a_bad_job_is_quarantined_alone_and_says_why_until_it_does_well():
    broken = {"bad": True}

    def plan(spec, status, observed, now):
        if observed.name == "bad" and broken["bad"]:
            raise RuntimeError("no idea what to do")
        return Decision(status.model_copy(update={"round": 1}), intent=status.round == 0)

    async def main():
        async with operating(plan, jobs=("bad", "good")) as (store, spy, operator, running):
            await asyncio.sleep(100)
            assert not running.done()
            assert status(store, "good")["round"] == 1
            error = conditions(store, "bad")["ReconcileError"]
            assert (error["status"], error["reason"], error["message"]) == (
                "True",
                "RuntimeError",
                "no idea what to do",
            )
            assert spy.calls.count("update_status DistributedTrainingJob") == 2  # the condition is written once
            assert 10 < operator.queue.failures(("space", "bad")) < 20  # it backs off
            broken["bad"] = False
            await asyncio.sleep(200)
            assert "ReconcileError" not in conditions(store, "bad")
            assert status(store, "bad")["round"] == 1

    run_virtual(main())


def test_a_pass_that_writes_progress_takes_the_error_away_from_what_it_has_written():
    seen = {"broken": True, "step": 0}

    def plan(spec, status, observed, now):
        if seen["broken"]:
            raise RuntimeError("no idea what to do")
        seen["step"] += 1
        return Decision(
            status.model_copy(update={"progress": status.progress.model_copy(update={"step": seen["step"]})})
        )

    async def main():
        async with operating(plan) as (store, _, operator, _):
            await asyncio.sleep(1)
            assert "ReconcileError" in conditions(store)
            seen["broken"] = False
            await asyncio.sleep(5)
            assert "ReconcileError" not in conditions(store)
            assert status(store)["progress"]["step"] >= 1
            name = "trainmaster_reconcile_total"
            assert operator.metrics.registry.get_sample_value(name, {"result": "conflict"}) == 0

    run_virtual(main())


def test_a_manifest_that_nobody_can_read_gets_a_condition():
    async def main():
        async with operating(nothing) as (store, _, _, running):
            wrong = job("wrong")
            wrong["spec"]["workers"] = {"replicas": "many"}
            store.create(JOB, wrong)
            await asyncio.sleep(1)
            assert "spec.workers.replicas" in conditions(store, "wrong")["ReconcileError"]["message"]
            assert not running.done()

    run_virtual(main())


def test_a_planner_that_never_comes_to_rest_is_stopped():
    def plan(spec, status, observed, now):
        return Decision(status.model_copy(update={"round": status.round + 1}), intent=True)

    async def main():
        async with operating(plan) as (store, _, _, _):
            await asyncio.sleep(0.001)
            assert conditions(store)["ReconcileError"]["reason"] == "NotConverging"

    run_virtual(main())


def test_a_conflict_means_a_fresh_look_and_no_lost_update():
    def plan(spec, status, observed, now):
        return Decision(status.model_copy(update={"round": 1}), intent=status.round == 0)

    async def main():
        async with operating(plan, rates=Rates(conflict=0.5)) as (store, _, _, _):
            store.patch(JOB, "space", "job", {"metadata": {"annotations": {"by": "somebody"}}})
            await asyncio.sleep(5)
            assert status(store)["round"] == 1
            assert store.find(JOB, "space", "job")["metadata"]["annotations"] == {"by": "somebody"}
            assert "ReconcileError" not in conditions(store)

    run_virtual(main())


def test_a_job_that_changed_is_planned_again_before_its_pods_are_deleted():
    def plan(spec, status, observed, now):
        if spec.suspend:
            return Decision(status)
        return Decision(status, delete=tuple(PodToDelete(p.name, p.uid, "test", 0) for p in observed.pods))

    async def main():
        async with operating(plan) as (store, spy, operator, _):
            await asyncio.sleep(1)
            spy.disconnect()  # the watches are away for a moment
            await asyncio.sleep(0)
            store.create(POD, pod("a", store.find(JOB, "space", "job"), **{"trainmaster.dev/slot": "0"}))
            operator.pods.wrote(store.get(POD, "space", "a"))
            store.patch(JOB, "space", "job", {"spec": {"suspend": True}})
            operator.queue.add(("space", "job"))
            await asyncio.sleep(0.01)
            assert spy.calls == ["get DistributedTrainingJob"] * 2  # at the first look, and before it deletes
            assert store.find(POD, "space", "a")

    run_virtual(main())


def test_a_pod_is_deleted_by_uid_so_that_its_successor_of_the_same_name_survives():
    def plan(spec, status, observed, now):
        return Decision(status, delete=tuple(PodToDelete(p.name, "an older uid", "test", 0) for p in observed.pods[:1]))

    async def main():
        async with operating(plan) as (store, _, _, _):
            store.create(POD, pod("a", store.find(JOB, "space", "job")))
            await asyncio.sleep(3)
            assert store.find(POD, "space", "a")

    run_virtual(main())


def test_a_job_is_deleted_by_uid_and_looked_at_no_more():
    async def main():
        async with operating(lambda spec, status, observed, now: Decision(status, delete_job=True)) as (store, spy, *_):
            await asyncio.sleep(1)
            assert store.list(JOB).items == []
            assert spy.calls.count(f"delete {JOB}") == 1

    run_virtual(main())


def test_a_job_of_another_controller_is_left_alone():
    def plan(spec, status, observed, now):
        raise AssertionError("it was planned")

    async def main():
        store = MemoryStore()
        theirs = store.create(JOB, job(managedBy="kueue.x-k8s.io/multikueue"))
        async with operating(plan, store=store) as (_, spy, _, _):
            await asyncio.sleep(1)
            assert spy.calls == []
            assert store.find(JOB, "space", "job") == theirs

    run_virtual(main())


def test_a_job_that_names_this_operator_as_its_controller_is_planned():
    planned = []

    def plan(spec, status, observed, now):
        planned.append(spec.managedBy)
        return Decision(status)

    async def main():
        store = MemoryStore()
        store.create(JOB, job(managedBy="trainmaster.dev/operator"))
        async with operating(plan, store=store):
            await asyncio.sleep(1)
            assert planned

    run_virtual(main())


def test_a_pod_whose_creation_was_not_answered_is_adopted():
    def plan(spec, status, observed, now):
        waits_s = observed.refusal.again_in_s if observed.refusal else 0.0  # no answer is a refusal that may pass
        create = () if observed.pods or waits_s else (PodToCreate("worker", 0, 0),)
        return Decision(status, create=create, requeue_after_s=waits_s or None)

    async def main():
        async with operating(plan, rates=Rates(lose=1.0)) as (store, spy, operator, _):
            await asyncio.sleep(3)
            assert len(store.list(POD).items) == 1
            assert operator.pods.get(("space", "job-worker-0-0")).record.slot == 0
            assert spy.calls.count("create Pod") == 1
            assert "ReconcileError" not in conditions(store)

    run_virtual(main())


def test_a_look_that_found_progress_is_not_followed_by_another():
    looks = []

    def plan(spec, status, observed, now):
        looks.append(now)
        progress = status.progress.model_copy(update={"step": len(looks)})
        return Decision(status.model_copy(update={"progress": progress}), requeue_after_s=3600)

    async def main():
        async with operating(plan) as (store, _, _, _):
            await asyncio.sleep(1)
            assert status(store)["progress"]["step"] == 1
            assert len(looks) <= 2  # the second at the write's own event

    run_virtual(main())


def test_progress_is_coalesced_but_intent_never_waits():
    steps = {"step": 0}

    def plan(spec, status, observed, now):
        steps["step"] += 1
        progress = status.progress.model_copy(update={"step": steps["step"]})
        if steps["step"] == 40:
            return Decision(status.model_copy(update={"progress": progress, "phase": JobPhase.RUNNING}), intent=True)
        return Decision(status.model_copy(update={"progress": progress}))

    async def main():
        async with operating(plan) as (store, spy, operator, _):
            for _ in range(100):
                operator.queue.add(("space", "job"))
                await asyncio.sleep(0.05)
                if status(store).get("phase") == "Running" and "noted" not in steps:
                    steps["noted"] = status(store)["progress"]["step"]
            assert 8 <= len(spy.calls) <= 13
            assert steps["noted"] == 40

    run_virtual(main())


def test_nothing_is_deleted_after_the_lease_has_run_out():
    acts = {"on": False}

    def plan(spec, status, observed, now):
        return Decision(
            status, delete=tuple(PodToDelete(p.name, p.uid, "test", 0) for p in observed.pods) if acts["on"] else ()
        )

    async def main():
        async with operating(plan) as (store, _, operator, running):
            store.create(POD, pod("a", store.find(JOB, "space", "job")))
            await asyncio.sleep(1)
            operator.leader._deadline = asyncio.get_running_loop().time()
            acts["on"] = True
            operator.queue.add(("space", "job"))
            with pytest.raises(NotLeading):
                await running
            assert store.find(POD, "space", "a")

    run_virtual(main())


def test_a_status_of_a_later_epoch_does_not_paralyse_an_operator_that_holds_the_lease():
    seen = []

    def plan(spec, status, observed, now):
        seen.append(observed.epoch)
        return Decision(status)

    async def main():
        async with operating(plan) as (store, _, operator, _):
            await asyncio.sleep(1)
            later = store.get(JOB, "space", "job")
            store.update_status(JOB, {**later, "status": {"internal": {"leaderEpoch": 7}}})
            await asyncio.sleep(1)
            assert operator.leader.epoch == 8

    run_virtual(main())
    assert seen[-1] == 8


def test_an_epoch_that_agents_have_obeyed_is_outgrown_else_they_would_ignore_us():
    async def main():
        async with operating(nothing) as (store, _, operator, _):
            await asyncio.sleep(1)
            uid = store.find(JOB, "space", "job")["metadata"]["uid"]
            store.update_status(JOB, {**store.get(JOB, "space", "job"), "status": {"internal": {"incarnations": "0"}}})
            store.create(POD, pod("job-worker-0-0", store.find(JOB, "space", "job")))
            made = store.get(POD, "space", "job-worker-0-0")
            await asyncio.sleep(1)
            me = Identity(uid, "space", "job", "worker", 0, 0, made["metadata"]["uid"])
            await operator.fleet.report(me, Report(me, round=0, epoch=5))
            await asyncio.sleep(1)
            answer = await operator.fleet.report(me, Report(me, round=0, epoch=5))
            assert answer.epoch == 6

    run_virtual(main())


def test_an_operator_that_waits_for_its_turn_stops_when_it_is_asked_to():
    async def main():
        async with operating(nothing) as (_, spy, _, first):
            await asyncio.sleep(1)
            clock = asyncio.get_running_loop().clock
            policies = Policies(nothing, directives, render_pod, build_service, pod_name)
            standby = Operator(spy, clock, chance(), Settings(operator_url="http://o", identity="standby"), policies)
            waiting = asyncio.create_task(standby.run())
            await asyncio.sleep(60)
            assert not standby.ready
            standby.stop()
            await waiting
            assert not first.done()

    run_virtual(main())


def test_stopping_releases_the_lease():
    async def main():
        async with operating(nothing) as (store, _, operator, running):
            await asyncio.sleep(1)
            operator.stop()
            await running
            assert store.find(LEASE, "default", "trainmaster-operator")["spec"]["holderIdentity"] == ""

    run_virtual(main())
