"""What a run keeps is stored before the status that names it, and every pod of the run is made from it."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from simulation.virtual.cluster_faults import CrashPoint, OperatorCrash
from tests.runtime.fakes import chance, job
from tests.runtime.test_reconcile import Spy, conditions, directives, status
from trainmaster_operator.cluster.port import JOB, POD, REVISION
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.manifests.job_pod import pod_name, render_pod
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.manifests.services import build_service
from trainmaster_operator.planning.facts.observation import Decision, PodToCreate
from trainmaster_operator.planning.lifecycle.revision import begun
from trainmaster_operator.runtime.leader.lease import LeaseSettings
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.reconcile import Policies
from trainmaster_operator.runtime.virtual_clock import run_virtual

SETTINGS = Settings("http://o", "me", lease=LeaseSettings(takeover=True))
OURS = ("create ControllerRevision", "get ControllerRevision", "delete ControllerRevision")


class Planner:
    """A run begins first, and when spec.restart is raised; pods that are missing are made. `seen`: the last look."""

    def __init__(self):
        self.seen = None

    def __call__(self, spec, status, observed, now):
        self.seen = observed
        begins = not status.revision and not observed.revision_lost
        if begins or spec.restart > status.restartObeyed:
            fields = {"startTime": str(now), "round": 1, **begun(spec, status, observed)}
            return Decision(status.model_copy(update=fields), intent=True)
        there = {pod.slot for pod in observed.pods}
        missing = tuple(PodToCreate("worker", slot, 0) for slot in (0, 1) if slot not in there)
        return Decision(status, create=() if observed.revision_lost else missing)


def stored():
    store = MemoryStore()
    store.create(JOB, job("job"))
    return store


@asynccontextmanager
async def operating(store, image="trainer:1", renders=render_pod):
    spy, planner = Spy(MemoryCluster(store)), Planner()
    operator = Operator(
        spy,
        asyncio.get_running_loop().clock,
        chance(),
        replace(SETTINGS, pods=PodDefaults("http://o", trainer_image=image)),
        Policies(planner, directives, renders, build_service, pod_name),
    )
    running = asyncio.create_task(operator.run())
    try:
        await asyncio.sleep(1)
        yield spy, planner
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def ours(spy):
    return [call for call in spy.calls if call in OURS]


def revisions(store):
    return {obj["metadata"]["name"]: obj for obj in store.list(REVISION).items}


def edit(store, lr):
    store.patch(JOB, "space", "job", {"spec": {"training": {"optimizer": {"lr": lr}}}})


def restart(store, number):
    store.patch(JOB, "space", "job", {"spec": {"restart": number}})


async def replaced(store, slot=1):
    """The pod of a slot that takes the place of one that is gone: its image, its learning rate, its revision."""
    store.delete(POD, "space", f"job-worker-{slot}-0", grace_s=0)
    await asyncio.sleep(1)
    return made(store, slot)


def made(store, slot):
    pod = store.find(POD, "space", f"job-worker-{slot}-0")
    (main,) = pod["spec"]["containers"]
    (config,) = [variable["value"] for variable in main["env"] if variable["name"] == "TRAINMASTER_CONFIG"]
    return main["image"], json.loads(config)["optimizer"]["lr"], pod["metadata"]["labels"]["trainmaster.dev/revision"]


def test_a_revision_is_stored_before_the_status_that_names_it():
    async def main():
        store = stored()
        async with operating(store) as (spy, _):
            assert spy.calls.index("create ControllerRevision") < spy.calls.index(f"update_status {JOB}")
            (name,) = revisions(store)
            assert status(store)["revision"] == name
            owner = revisions(store)[name]["metadata"]["ownerReferences"][0]
            assert owner["uid"] == store.find(JOB, "space", "job")["metadata"]["uid"]
            store.delete(JOB, "space", "job")
            assert revisions(store) == {}

    run_virtual(main())


def test_an_operator_that_dies_between_both_writes_leaves_a_revision_that_the_next_one_takes():
    async def main():
        store = stored()
        spy = Spy(MemoryCluster(store), crash=CrashPoint(1, "after"))
        policies = Policies(Planner(), directives, render_pod, build_service, pod_name)
        operator = Operator(spy, asyncio.get_running_loop().clock, chance(), SETTINGS, policies)
        running = asyncio.create_task(operator.run())
        with suppress(OperatorCrash):
            await running
        assert len(revisions(store)) == 1
        assert "revision" not in store.find(JOB, "space", "job").get("status", {})
        async with operating(store, image="trainmaster/trainer:latest") as (spy, _):
            assert ours(spy) == ["create ControllerRevision", "get ControllerRevision"]
            assert list(revisions(store)) == [status(store)["revision"]]

    run_virtual(main())


def test_a_replaced_pod_has_the_config_that_the_run_began_with():
    async def main():
        store = stored()
        async with operating(store) as (_, planner):
            before = made(store, 1)
            edit(store, 0.5)
            await asyncio.sleep(1)
            assert planner.seen.waiting == ("training.optimizer.lr",)
            assert await replaced(store) == before
            restart(store, 1)
            await asyncio.sleep(1)
            assert planner.seen.waiting == ()
            image, lr, revision = await replaced(store)
            assert (image, lr, revision) == ("trainer:1", 0.5, status(store)["revision"])
            assert revision != before[2]

    run_virtual(main())


def test_a_replaced_pod_has_the_image_and_the_form_that_the_run_began_with():
    def another(job, role, defaults):
        pod = render_pod(job, role, defaults)
        return {**pod, "spec": {**pod["spec"], "priorityClassName": "upgraded"}}

    async def main():
        store = stored()
        async with operating(store):
            before = made(store, 1)
        async with operating(store, image="trainer:2", renders=another) as (spy, planner):
            assert await replaced(store) == before
            assert "priorityClassName" not in store.find(POD, "space", "job-worker-1-0")["spec"]
            assert planner.seen.waiting == ()
            assert ours(spy) == ["get ControllerRevision"]
            restart(store, 1)
            await asyncio.sleep(1)
            assert (await replaced(store))[0] == "trainer:2"
            assert store.find(POD, "space", "job-worker-1-0")["spec"]["priorityClassName"] == "upgraded"

    run_virtual(main())


def test_an_operator_that_would_make_the_same_asks_for_nothing_and_renders_once():
    rendered = []

    def counting(job, role, defaults):
        rendered.append(job.metadata.name)
        return render_pod(job, role, defaults)

    async def main():
        store = stored()
        async with operating(store):
            pass
        async with operating(store, renders=counting) as (spy, _):
            for slot in (0, 1, 0):
                await replaced(store, slot)
            assert ours(spy) == []
            assert rendered == ["job"]

    run_virtual(main())


def test_a_name_that_something_else_has_gets_a_number():
    async def main():
        first, store = stored(), stored()
        async with operating(first):
            (name,) = revisions(first)
        meta = {"name": name, "namespace": "space"}
        store.create(REVISION, {"apiVersion": "apps/v1", "kind": REVISION, "metadata": meta, "revision": 1, "data": {}})
        async with operating(store) as (spy, _):
            await asyncio.sleep(2)
            assert status(store)["revision"] == f"{name}-1"
            assert set(revisions(store)) == {name, f"{name}-1"}
            assert (await replaced(store))[2] == f"{name}-1"
            assert "ReconcileError" not in conditions(store)
        async with operating(store) as (spy, planner):
            assert ours(spy) == ["get ControllerRevision"]
            assert not planner.seen.revision_lost

    run_virtual(main())


def test_a_revision_that_was_deleted_is_made_again_by_an_operator_that_knows_it():
    async def main():
        store = stored()
        async with operating(store) as (_, planner):
            before, (name,) = made(store, 1), revisions(store)
            store.delete(REVISION, "space", name)
            edit(store, 0.5)
            await asyncio.sleep(1)
            assert list(revisions(store)) == [name]
            assert not planner.seen.revision_lost
            assert await replaced(store) == before

    run_virtual(main())


def test_a_revision_that_was_deleted_is_lost_when_nobody_can_make_it_again():
    async def main():
        store = stored()
        async with operating(store):
            (name,) = revisions(store)
        store.delete(REVISION, "space", name)
        async with operating(store) as (_, planner):
            assert not planner.seen.revision_lost  # the job and this operator would make the same
        edit(store, 0.5)
        async with operating(store) as (spy, planner):
            assert planner.seen.revision_lost
            store.delete(POD, "space", "job-worker-1-0", grace_s=0)
            await asyncio.sleep(5)
            assert [pod["metadata"]["name"] for pod in store.list(POD).items] == ["job-worker-0-0"]
            assert ours(spy) == ["get ControllerRevision"]
            restart(store, 1)
            await asyncio.sleep(1)
            assert not planner.seen.revision_lost
            assert made(store, 1)[1] == 0.5

    run_virtual(main())


def test_a_run_that_began_without_a_revision_gets_no_pod_from_an_operator_that_can_not_know_the_others():
    async def main():
        store = stored()
        async with operating(store):
            (name,) = revisions(store)
        store.delete(REVISION, "space", name)
        job = store.get(JOB, "space", "job")
        unnamed = {name: value for name, value in job["status"].items() if name != "revision"}
        store.update_status(JOB, {**job, "status": unnamed})
        store.delete(POD, "space", "job-worker-1-0", grace_s=0)
        async with operating(store, image="trainer:2") as (spy, planner):
            assert planner.seen.revision_lost
            await asyncio.sleep(5)
            assert [pod["metadata"]["name"] for pod in store.list(POD).items] == ["job-worker-0-0"]
            assert ours(spy) == []

    run_virtual(main())


def test_of_older_revisions_the_last_three_stay():
    async def main():
        store = stored()
        async with operating(store):
            for number in range(1, 5):
                edit(store, number / 10)
                restart(store, number)
                await asyncio.sleep(1)
            assert set(revisions(store)) == set(status(store)["revisions"])
            assert len(revisions(store)) == 3

    run_virtual(main())


def test_a_job_that_is_too_large_to_be_kept_is_told_so():
    async def main():
        store = stored()
        container = {"name": "trainer", "env": [{"name": "TEXT", "value": "x" * 600_000}]}
        template = {"spec": {"containers": [container]}}
        store.patch(JOB, "space", "job", {"spec": {"workers": {"template": template}}})
        async with operating(store):
            error = conditions(store)["ReconcileError"]
            assert error["reason"] == "TooLarge"
            assert "put long texts of workers.template into the image, a ConfigMap or a volume" in error["message"]
            assert store.list(POD).items == []

    run_virtual(main())
