"""A job of many pods: few looks for all of them, and a Service that doesn't follow each of their steps."""

import asyncio

from tests.runtime.fakes import job
from tests.runtime.test_reconcile import directives, operating
from trainmaster.contract.wire import Identity, JoinRequest
from trainmaster_operator.cluster.port import EVENT, JOB, POD, SERVICE, Forbidden
from trainmaster_operator.planning.facts.observation import Decision, PodToCreate
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.virtual_clock import run_virtual

MANY = 64


def create_missing(spec, status, observed, now):
    missing = range(len(observed.pods), spec.workers.replicas)
    return Decision(status, create=tuple(PodToCreate("worker", slot, 0) for slot in missing))


def crowd(store, replicas=MANY):
    store.create(JOB, job("crowd", workers={"replicas": replicas}, training=training(replicas)))


def training(batch):
    return {"data": {"path": "/data"}, "steps": 10, "batch": {"global": batch}}


def run_pods(store, slots, phase="Running"):
    for slot in slots:
        found = store.find(POD, "space", f"crowd-worker-{slot}-0")
        bound = found if found["spec"].get("nodeName") else store.bind("space", found["metadata"]["name"], "node")
        store.update_status(POD, {**bound, "status": {"phase": phase}})


def services(store):
    return [service["metadata"]["name"] for service in store.list(SERVICE).items]


def test_a_job_of_many_pods_gets_its_service_once_they_all_run():
    async def main():
        async with operating(create_missing, jobs=()) as (store, _, _, _):
            crowd(store)
            await asyncio.sleep(1)
            assert len(store.list(POD).items) == MANY
            run_pods(store, range(MANY - 1))
            await asyncio.sleep(1)
            assert services(store) == []
            run_pods(store, [MANY - 1])
            await asyncio.sleep(1)
            assert services(store) == ["crowd"]

    run_virtual(main())


def test_ranks_of_many_pods_do_not_start_without_the_service():
    async def main():
        ready = False
        told = []

        def plan(spec, status, observed, now):
            if status.incarnations and (status.roundStore or not ready):
                return Decision(status)
            opened = {"round": 1, "roundStore": "10.0.0.1:4000"} if ready else {}
            return Decision(status.model_copy(update={"incarnations": f"0*{MANY}", **opened}), intent=True)

        def tell(spec, status, observed):
            def of(slot):
                told.append((status.round, services(store)))
                return directives(spec, status, observed)(slot)

            return of

        async with operating(plan, jobs=(), tell=tell) as (store, _, operator, _):
            crowd(store)
            await asyncio.sleep(1)
            uid = store.find(JOB, "space", "crowd")["metadata"]["uid"]
            me = Identity(uid, "space", "crowd", "worker", 0, 0, "pod-uid")
            waiting = asyncio.create_task(operator.fleet.join(me, JoinRequest(me, seen_tag="tag 0")))
            await asyncio.sleep(1)
            ready = True
            operator.queue.add(JobKey("space", "crowd"))
            assert (await waiting).round == 1
            assert told == [(0, []), (1, ["crowd"])]

    run_virtual(main())


def test_a_service_that_is_refused_is_told_and_stops_nobody():
    def admission(kind, new, old):
        if kind == SERVICE:
            raise Forbidden("no services here")

    async def main():
        async with operating(create_missing, jobs=()) as (store, _, operator, _):
            store.admission = admission
            crowd(store)
            await asyncio.sleep(1)
            run_pods(store, range(MANY))
            await asyncio.sleep(5)
            reasons = {event["reason"] for event in store.list(EVENT).items}
            assert "ServiceRefused" in reasons
            assert operator.queue.failures(JobKey("space", "crowd")) == 0

    run_virtual(main())


def test_many_pods_that_start_share_a_look_and_one_that_ends_has_its_own():
    looks = []

    def plan(spec, status, observed, now):
        looks.append(asyncio.get_running_loop().time())
        return create_missing(spec, status, observed, now)

    async def main():
        async with operating(plan, jobs=()) as (store, _, _, _):
            crowd(store, 500)
            await asyncio.sleep(5)
            looks.clear()
            for slot in range(500):
                run_pods(store, [slot])
                await asyncio.sleep(0.001)
            await asyncio.sleep(1)
            assert 5 <= len(looks) <= 7  # in half a second, one each tenth, and the last
            looks.clear()
            began = asyncio.get_running_loop().time()
            run_pods(store, [7], "Failed")
            await asyncio.sleep(0.01)
            assert looks
            assert looks[0] - began < 0.01

    run_virtual(main())
