"""SIGTERM: what is in hand is finished, nothing else is begun, and the next leader need not wait."""

import asyncio

from tests.runtime.fakes import chance, cluster, job
from trainmaster_operator.cluster.port import EVENT, JOB, LEASE, NotFound
from trainmaster_operator.planning.facts.observation import Decision, EventType, PlannedEvent
from trainmaster_operator.runtime.leader.lease import LeaseSettings
from trainmaster_operator.runtime.operator import PASSES_END_WITHIN_S, Operator, default_policies
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.virtual_clock import run_virtual


def settle(spec, status, observed, now):
    return Decision(status)


def operator(memory, plan=settle, **settings):
    policies = default_policies()
    return Operator(
        memory,
        asyncio.get_running_loop().clock,
        chance(),
        Settings(operator_url="", identity="me", **settings),
        type(policies)(**{**vars(policies), "plan": plan}),
    )


def holder(store):
    return store.find(LEASE, "default", "trainmaster-operator")["spec"]["holderIdentity"]


class Passes:
    """Passes that take a second each, and note what they did while the lease was ours."""

    def __init__(self, store, seconds):
        self.store = store
        self.seconds = seconds
        self.begun = []
        self.ended = []

    async def __call__(self, key):
        self.begun.append(key.name)
        await asyncio.sleep(self.seconds)
        assert holder(self.store) == "me"
        self.ended.append(key.name)


def test_the_pass_in_hand_is_finished_before_the_lease_is_given_up_and_no_other_is_begun():
    async def main():
        store, memory = cluster()
        for name in ("a", "b", "c"):
            store.create(JOB, job(name))
        made = operator(memory, workers=1)
        passes = made.reconciler.reconcile = Passes(store, 1.0)
        work = asyncio.create_task(made.run())
        await asyncio.sleep(0.5)
        made.stop()
        await work
        assert (passes.begun, passes.ended) == (["a"], ["a"])
        assert holder(store) == ""
        assert asyncio.get_running_loop().time() == 1.0

    run_virtual(main())


def test_a_pass_that_does_not_end_is_cut_off():
    async def main():
        store, memory = cluster()
        store.create(JOB, job())
        made = operator(memory)
        passes = made.reconciler.reconcile = Passes(store, 600.0)
        work = asyncio.create_task(made.run())
        await asyncio.sleep(0.5)
        made.stop()
        await work
        assert passes.ended == []
        assert holder(store) == ""
        assert asyncio.get_running_loop().time() == 0.5 + PASSES_END_WITHIN_S

    run_virtual(main())


def test_an_idle_operator_stops_at_once_and_a_waiting_one_too():
    async def main():
        store, memory = cluster()
        leader = operator(memory)
        work = asyncio.create_task(leader.run())
        await asyncio.sleep(1)
        leader.stop()
        await work
        assert asyncio.get_running_loop().time() == 1
        assert holder(store) == ""

    run_virtual(main())


def test_the_last_events_are_told():
    def plan(spec, status, observed, now):
        event = PlannedEvent(EventType.NORMAL, "Opened", "round 1")
        return Decision(status.model_copy(update={"round": 1}), intent=status.round == 0, events=(event,))

    async def main():
        store, memory = cluster()
        store.create(JOB, job())
        made = operator(memory, plan)
        work = asyncio.create_task(made.run())
        await asyncio.sleep(0.01)
        made.stop()
        await work
        assert [event["reason"] for event in store.list(EVENT).items] == ["Opened"]

    run_virtual(main())


def test_a_job_that_has_gone_untold_is_let_go_and_is_no_error():
    async def main():
        store, memory = cluster()
        store.create(JOB, job())

        def plan(spec, status, observed, now):
            return Decision(status.model_copy(update={"round": 1}), intent=True)

        made = operator(memory, plan, relist_jobs_s=600.0, lease=LeaseSettings())
        listed = memory.list

        async def list_then_lose(kind, *rest):
            listing = await listed(kind, *rest)
            if kind == JOB:
                store.delete(JOB, "space", "job")
            return listing

        memory.list = list_then_lose
        work = asyncio.create_task(made.run())
        await asyncio.sleep(5)
        assert len(made.jobs) == 0
        assert made.metrics.registry.get_sample_value("trainmaster_reconcile_total", {"result": "error"}) == 0
        made.stop()
        await work

    run_virtual(main())


def test_a_missing_object_of_a_job_that_is_there_is_its_error():
    async def main():
        store, memory = cluster()
        store.create(JOB, job())
        made = operator(memory)

        async def no_namespace(key):
            raise NotFound('namespaces "space" not found')

        made.reconciler.reconcile = no_namespace
        work = asyncio.create_task(made.run())
        await asyncio.sleep(5)
        (condition,) = store.find(JOB, "space", "job")["status"]["conditions"]
        assert (condition["type"], condition["reason"]) == ("ReconcileError", "NotFound")
        reasons = {event["reason"]: event["count"] for event in store.list(EVENT).items}
        assert reasons.keys() == {"ReconcileError"}
        made.stop()
        await work

    run_virtual(main())
