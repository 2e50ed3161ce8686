"""What the API server doesn't take: pods over the real planner, on a store that refuses."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import Any

import pytest

from simulation.virtual.faulty_cluster import FaultyCluster
from tests.runtime.fakes import chance, cluster, job, pod
from tests.stored import flat_status
from trainmaster_operator.cluster.port import CLAIM, CONFIG_MAP, EVENT, JOB, POD, SERVICE, Forbidden, Invalid
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.status_mapping import write_status
from trainmaster_operator.runtime.leader.lease import LeaseSettings
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.virtual_clock import run_virtual


@asynccontextmanager
async def operating(*, in_cluster: bool = False, bundle: Any = None, prepare: Any = None, **spec: Any) -> Any:
    """An operator with its own planner over a store with one job of two pods; nobody runs the pods."""
    store, memory = cluster()
    if prepare is not None:
        prepare(store)
    if spec is not None:
        store.create(JOB, job(**spec))
    pods = PodDefaults("https://o", in_cluster=in_cluster)
    settings = Settings(
        operator_url="https://o", identity="me", lease=LeaseSettings(takeover=True), pods=pods, ca_bundle=bundle
    )
    operator = Operator(FaultyCluster(memory, chance()), asyncio.get_running_loop().clock, chance(), settings)  # type: ignore[attr-defined]
    running = asyncio.create_task(operator.run())
    yield store, operator
    operator.stop()
    await asyncio.wait([running], timeout=60)
    assert running.done()


def scheduled(store: Any, name: str = "job") -> dict[str, Any]:
    found = [c for c in conditions(store, name) if c["type"] == "Scheduled"]
    return found[0] if found else {}


def conditions(store: Any, name: str = "job") -> list[dict[str, Any]]:
    status = store.find(JOB, "space", name).get("status") or {}
    return status.get("conditions") or []


def pods(store: Any) -> list[str]:
    return [obj["metadata"]["name"] for obj in store.list(POD).items]


def quota(store: Any, most: int) -> None:
    def admit(kind: str, new: Any, old: Any) -> None:
        if kind == POD and old is None and len(store.list(POD).items) >= most:
            name = new["metadata"]["name"]
            raise Forbidden(f'pods "{name}" is forbidden: exceeded quota: q, limited: pods={most}')

    store.admission = admit


def test_a_pod_that_the_quota_refuses_is_told_in_the_servers_words_and_tried_again() -> None:
    async def main() -> None:
        async with operating(prepare=lambda store: quota(store, 1)) as (store, operator):
            await asyncio.sleep(5)
            assert pods(store) == ["job-worker-0-0"]
            condition = scheduled(store)
            assert (condition["status"], condition["reason"]) == ("False", "QuotaExceeded")
            assert 'pods "job-worker-1-0" is forbidden: exceeded quota' in condition["message"]
            assert "ReconcileError" not in {c["type"] for c in conditions(store)}
            assert operator.queue.failures(("space", "job")) == 0
            told = [event for event in store.list(EVENT).items if event["reason"] == "QuotaExceeded"]
            assert len(told) == 1
            store.admission = None
            await asyncio.sleep(60)
            assert len(pods(store)) == 2

    run_virtual(main())


def test_a_pod_that_is_malformed_is_told_in_the_servers_words() -> None:
    def prepare(store: Any) -> None:
        def admit(kind: str, new: Any, old: Any) -> None:
            if kind == POD and old is None:
                raise Invalid('Pod "job-worker-0-0" is invalid: spec.containers[0].image: Required value')

        store.admission = admit

    async def main() -> None:
        async with operating(prepare=prepare) as (store, _):
            await asyncio.sleep(2)
            assert scheduled(store)["reason"] == "ConfigError"
            assert "spec.containers[0].image: Required value" in scheduled(store)["message"]

    run_virtual(main())


def test_a_refusal_is_tried_again_at_distances_that_grow_to_eight_seconds() -> None:
    tries: list[float] = []

    def prepare(store: Any) -> None:
        def admit(kind: str, new: Any, old: Any) -> None:
            if kind == POD and old is None:
                tries.append(asyncio.get_running_loop().time())
                raise Forbidden("no")

        store.admission = admit

    async def main() -> None:
        async with operating(prepare=prepare, workers={"replicas": 1}, training={**TRAINING, "batch": {"global": 1}}):
            await asyncio.sleep(300)
            gaps = [b - a for a, b in itertools.pairwise(tries)]
            assert [round(gap) for gap in gaps[:7]] == [1, 2, 4, 8, 8, 8, 8]

    run_virtual(main())


TRAINING = {"data": {"path": "/data"}, "steps": 10, "batch": {"global": 2}}


def test_a_pod_of_somebody_else_in_our_place_is_left_alone_and_named() -> None:
    async def main() -> None:
        async with operating(prepare=lambda store: store.create(POD, pod("job-worker-0-0"))) as (store, _):
            await asyncio.sleep(2)
            condition = scheduled(store)
            assert condition["reason"] == "NameTaken"
            assert (
                "Pod job-worker-0-0 exists and belongs to something else: delete it, or rename the job"
                in condition["message"]
            )
            assert "ownerReferences" not in store.find(POD, "space", "job-worker-0-0")["metadata"]
            store.delete(POD, "space", "job-worker-0-0", grace_s=0)
            await asyncio.sleep(60)
            assert "ownerReferences" in store.find(POD, "space", "job-worker-0-0")["metadata"]

    run_virtual(main())


def test_a_service_of_somebody_else_is_not_overwritten() -> None:
    def prepare(store: Any) -> None:
        meta = {"name": "job", "namespace": "space"}
        store.create(
            SERVICE, {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": [{"port": 80}]}}
        )

    async def main() -> None:
        async with operating(prepare=prepare) as (store, _):
            await asyncio.sleep(2)
            assert scheduled(store)["reason"] == "NameTaken"
            assert "Service job exists and belongs to something else" in scheduled(store)["message"]
            assert store.find(SERVICE, "space", "job")["spec"] == {"ports": [{"port": 80}]}
            assert pods(store) == []

    run_virtual(main())


def test_a_job_under_an_old_name_waits_until_the_old_pods_have_ended_and_counts_nothing() -> None:
    def prepare(store: Any) -> None:
        old = store.create(JOB, job())
        held = pod("job-worker-0-0", old)
        held["metadata"]["finalizers"] = ["example.com/slow"]
        store.create(POD, held)
        store.delete(JOB, "space", "job")

    async def main() -> None:
        async with operating(prepare=prepare) as (store, _):
            await asyncio.sleep(20)
            assert pods(store) == ["job-worker-0-0"]
            assert scheduled(store)["reason"] == "NameInUse"
            assert "waiting for a pod of a previous job with this name to terminate" in scheduled(store)["message"]
            store.patch(POD, "space", "job-worker-0-0", {"metadata": {"finalizers": None}})
            await asyncio.sleep(3)
            assert pods(store) == ["job-worker-0-0", "job-worker-1-0"]
            status = flat_status(store.find(JOB, "space", "job")["status"])
            assert status["restarts"]["total"] == 0
            assert status["incarnations"] == "0*2"

    run_virtual(main())


def claim(*modes: str) -> dict[str, Any]:
    meta = {"name": "models", "namespace": "space"}
    return {"apiVersion": "v1", "kind": CLAIM, "metadata": meta, "spec": {"accessModes": list(modes)}}


@pytest.mark.parametrize(
    ("given", "created", "together"),
    [
        (claim("ReadWriteMany"), 2, False),
        (None, 2, False),
        (claim("ReadWriteOnce"), 2, True),
        (claim("ReadWriteOncePod"), 0, False),
    ],
    ids=["RWX", "-", "RWO", "RWOP"],
)
def test_a_claim_of_one_node_keeps_all_pods_together_and_only_one_that_cannot_work_fails_the_job(
    given: Any, created: int, together: bool
) -> None:
    def prepare(store: Any) -> None:
        if given is not None:
            store.create(CLAIM, given)

    async def main() -> None:
        volume = {"volume": {"claim": "models"}}
        async with operating(prepare=prepare, in_cluster=True, checkpoint=volume) as (store, _):
            await asyncio.sleep(2)
            assert len(pods(store)) == created
            told = [event["message"] for event in store.list(EVENT).items if event["reason"] == "OneNode"]
            assert bool(told) == together
            for pod in store.list(POD).items:
                between = (pod["spec"].get("affinity") or {}).get("podAffinity") or {}
                assert bool(between) == together
            if not created:
                status = flat_status(store.find(JOB, "space", "job")["status"])
                assert (status["phase"], status["lastFailure"]["cause"]) == ("Failed", "ConfigError")
                assert (
                    "claim models is ReadWriteOncePod, for one pod only, and the job has 2 pods"
                    in status["lastFailure"]["message"]
                )

    run_virtual(main())


def test_a_namespace_knows_the_operators_certificates_before_its_first_pod_and_hears_of_new_ones() -> None:
    bundle = {"now": "old"}

    def prepare(store: Any) -> None:
        def admit(kind: str, new: Any, old: Any) -> None:
            if kind == POD:
                assert store.find(CONFIG_MAP, "space", "trainmaster-ca")["data"] == {"ca.crt": "old"}

        store.admission = admit

    async def main() -> None:
        async with operating(prepare=prepare, bundle=lambda: bundle["now"]) as (store, operator):
            await asyncio.sleep(2)
            assert len(pods(store)) == 2
            found = store.find(CONFIG_MAP, "space", "trainmaster-ca")
            assert "ownerReferences" not in found["metadata"]
            version = found["metadata"]["resourceVersion"]
            await operator.reconciler.bundle_changed()
            assert store.find(CONFIG_MAP, "space", "trainmaster-ca")["metadata"]["resourceVersion"] == version
            bundle["now"] = "old and new"
            await operator.reconciler.bundle_changed()
            assert store.find(CONFIG_MAP, "space", "trainmaster-ca")["data"] == {"ca.crt": "old and new"}

    run_virtual(main())


def test_a_namespace_that_is_made_anew_gets_the_certificates_again() -> None:
    async def main() -> None:
        async with operating(bundle=lambda: "bundle") as (store, _):
            await asyncio.sleep(2)
            store.delete(CONFIG_MAP, "space", "trainmaster-ca")
            store.create(JOB, job("second"))
            await asyncio.sleep(2)
            assert "second-worker-0-0" in pods(store)
            assert store.find(CONFIG_MAP, "space", "trainmaster-ca")["data"] == {"ca.crt": "bundle"}

    run_virtual(main())


def test_a_new_leader_tells_certificates_that_the_one_before_made_and_could_not_tell() -> None:
    def prepare(store: Any) -> None:
        made = store.create(JOB, job(name="running"))
        state = JobState(phase="Running", incarnations="0*2", round=1, roundStore="h:1", roundMap="0-1")
        store.update_status(JOB, {**made, "status": write_status(state)})
        for slot in ("0", "1"):
            labels = {
                "trainmaster.dev/role": "worker",
                "trainmaster.dev/slot": slot,
                "trainmaster.dev/incarnation": "0",
            }
            name = f"running-worker-{slot}-0"
            store.create(POD, pod(name, made, **labels))
            store.bind("space", name, "node")
            store.update_status(POD, {**store.get(POD, "space", name), "status": {"phase": "Running"}})

    async def main() -> None:
        async with operating(prepare=prepare, bundle=lambda: "new") as (store, _):
            store.delete(JOB, "space", "job")
            await asyncio.sleep(2)
            assert pods(store) == ["running-worker-0-0", "running-worker-1-0"]
            assert store.find(CONFIG_MAP, "space", "trainmaster-ca")["data"] == {"ca.crt": "new"}

    run_virtual(main())


def test_a_pod_that_is_replaced_loses_its_name_before_it_ends() -> None:
    async def main() -> None:
        async with operating() as (store, _):
            await asyncio.sleep(1)
            store.bind("space", "job-worker-0-0", "node")
            made = store.get(POD, "space", "job-worker-0-0")
            store.update_status(POD, {**made, "status": {"phase": "Running"}})
            await asyncio.sleep(1)
            current = store.get(JOB, "space", "job")
            internal = {**current["status"]["internal"], "incarnations": "1,0"}
            raised = {**current["status"], "internal": internal}
            store.update_status(JOB, {**current, "status": raised})
            await asyncio.sleep(1)
            meta = store.find(POD, "space", "job-worker-0-0")["metadata"]
            assert meta["deletionTimestamp"]
            assert "trainmaster.dev/current" not in meta["labels"]
            assert "job-worker-0-1" not in pods(store)
            await asyncio.sleep(10)  # nobody confirms its end
            assert pods(store) == ["job-worker-0-0", "job-worker-0-1", "job-worker-1-0"]

    run_virtual(main())
