"""New resources in a job's template reach the pods that run."""

import asyncio
import json

import pytest

from tests.runtime.test_reconcile import operating
from trainmaster_operator.cluster.port import EVENT, JOB, POD, Forbidden, NotFound
from trainmaster_operator.manifests.object_names import RESOURCES
from trainmaster_operator.planning.facts.observation import Decision, PodToCreate
from trainmaster_operator.runtime.virtual_clock import run_virtual


def two_pods(spec, status, observed, now):
    return Decision(status, create=() if observed.pods else (PodToCreate("worker", 0, 0), PodToCreate("worker", 1, 0)))


def resources(store, slot):
    return store.find(POD, "space", f"job-worker-{slot}-0")["spec"]["containers"][0].get("resources")


def name_of(store):
    return store.find(POD, "space", "job-worker-0-0")["spec"]["containers"][0]["name"]


def ask(store, **resources):
    template = {"spec": {"containers": [{"name": name_of(store), "resources": resources}]}}
    store.patch(JOB, "space", "job", {"spec": {"workers": {"template": template}}})


def told(store):
    return {event["reason"]: event["message"] for event in store.list(EVENT).items}


def test_pods_that_run_are_resized_once_and_their_owner_is_told():
    async def main():
        async with operating(two_pods) as (store, spy, operator, _):
            await asyncio.sleep(1)
            before = [store.find(POD, "space", f"job-worker-{slot}-0")["metadata"]["uid"] for slot in (0, 1)]
            assert "resize Pod" not in spy.calls
            ask(store, requests={"cpu": "2"}, limits={"memory": "4Gi"})
            await asyncio.sleep(1)
            for slot in (0, 1):
                assert resources(store, slot)["requests"] == {"cpu": "2000m", "memory": str(4 * 2**30)}
                assert resources(store, slot)["limits"] == {"memory": str(4 * 2**30)}
            assert [store.find(POD, "space", f"job-worker-{slot}-0")["metadata"]["uid"] for slot in (0, 1)] == before
            words = told(store)["Resized"]
            assert words.startswith("2 pods were resized in place, without a restart: ")
            assert "requests cpu 2, memory 4096Mi" in words
            operator.queue.add(("space", "job"))
            await asyncio.sleep(10)
            assert spy.calls.count("resize Pod") == 2

    run_virtual(main())


def test_another_operator_finds_what_the_one_before_has_not_done():
    async def main():
        async with operating(two_pods) as (store, _, _, _):
            await asyncio.sleep(1)
        ask(store, requests={"cpu": "3"})
        given = {name_of(store): {"requests": {"cpu": "3000m"}}}
        annotations = {RESOURCES: json.dumps(given)}
        store.patch(POD, "space", "job-worker-0-0", {"metadata": {"annotations": annotations}})
        async with operating(two_pods, store=store) as (_, spy, _, _):
            await asyncio.sleep(60)
            assert spy.calls.count("resize Pod") == 1
            assert resources(store, 1)["requests"] == {"cpu": "3000m"}

    run_virtual(main())


def test_what_somebody_else_gave_a_pod_stays_when_the_leader_changes_and_until_the_job_asks_for_something_else():
    async def main():
        async with operating(two_pods) as (store, _, _, _):
            await asyncio.sleep(1)
            ask(store, requests={"cpu": "2", "memory": "1Gi"})
            await asyncio.sleep(1)
        uid = store.find(POD, "space", "job-worker-0-0")["metadata"]["uid"]
        theirs = {"requests": {"cpu": "250m", "memory": "3Gi"}}  # as a vertical autoscaler does it
        store.resize("space", "job-worker-0-0", uid, {name_of(store): theirs})
        async with operating(two_pods, store=store) as (_, spy, operator, _):
            await asyncio.sleep(60)
            operator.queue.add(("space", "job"))
            await asyncio.sleep(60)
            assert "resize Pod" not in spy.calls
            assert resources(store, 0) == theirs
            ask(store, requests={"cpu": "3", "memory": "1Gi"})
            await asyncio.sleep(1)
            assert resources(store, 0)["requests"] == {"cpu": "3000m", "memory": "3Gi"}

    run_virtual(main())


def test_a_pod_that_goes_meanwhile_is_no_refusal():
    async def main():
        async with operating(two_pods) as (store, spy, _, _):
            await asyncio.sleep(1)
            resize = spy.resize

            async def too_late(namespace, name, uid, resources):
                store.delete(POD, namespace, name, grace_s=0)
                return await resize(namespace, name, uid, resources)

            spy.resize = too_late
            ask(store, requests={"cpu": "2"})
            await asyncio.sleep(10)
            assert {"Resized", "ResizeRefused"} & set(told(store)) == set()

    run_virtual(main())


@pytest.mark.parametrize("error", [NotFound("the server could not find the requested resource"), Forbidden("quota")])
def test_a_cluster_that_refuses_is_asked_once_and_the_job_goes_on(error):
    async def main():
        async with operating(two_pods) as (store, spy, operator, _):
            await asyncio.sleep(1)
            spy.refusals["resize"] = error
            ask(store, requests={"cpu": "2"})
            await asyncio.sleep(1)
            operator.queue.add(("space", "job"))
            await asyncio.sleep(10)
            assert spy.calls.count("resize Pod") == 2
            assert (
                told(store)["ResizeRefused"]
                == f"2 pods were not resized in place; each gets the new values when it is replaced: {error}"
            )
            assert "Resized" not in told(store)

    run_virtual(main())
