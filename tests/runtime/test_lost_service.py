"""The Service of a job that somebody deletes."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.runtime.test_refusals import operating
from trainmaster_operator.cluster.port import EVENT, JOB, POD, SERVICE, NotFound
from trainmaster_operator.runtime.virtual_clock import run_virtual

BRIEFLY_S = 0.5


def service(store: Any) -> Any:
    try:
        return store.find(SERVICE, "space", "job")
    except NotFound:
        return None


def test_a_service_that_is_deleted_is_made_again_although_nothing_else_happens() -> None:
    async def main() -> None:
        async with operating(in_cluster=True) as (store, _):
            await asyncio.sleep(5)
            first = service(store)["metadata"]["uid"]
            store.delete(SERVICE, "space", "job")
            assert service(store) is None
            await asyncio.sleep(BRIEFLY_S)
            assert service(store)["metadata"]["uid"] != first
            assert service(store)["metadata"]["ownerReferences"][0]["kind"] == JOB

    run_virtual(main())


def test_a_service_that_somebody_else_put_in_its_place_is_told_of_and_left_alone() -> None:
    async def main() -> None:
        async with operating(in_cluster=True) as (store, operator):
            await asyncio.sleep(5)
            meta = {"name": "job", "namespace": "space"}
            store.delete(SERVICE, "space", "job")
            store.create(
                SERVICE, {"apiVersion": "v1", "kind": SERVICE, "metadata": meta, "spec": {"clusterIP": "None"}}
            )
            await asyncio.sleep(BRIEFLY_S)
            for _ in range(20):
                operator.queue.add(("space", "job"))
                await asyncio.sleep(0.01)
            await asyncio.sleep(1)
            assert "ownerReferences" not in service(store)["metadata"]
            (told,) = [event for event in store.list(EVENT).items if event["reason"] == "ServiceRefused"]
            assert (told["count"], "its pods have no DNS names" in told["message"]) == (1, True)

    run_virtual(main())


def test_a_job_that_ends_or_has_no_pods_needs_no_service() -> None:
    async def main() -> None:
        async with operating(in_cluster=True, suspend=True) as (store, _):
            await asyncio.sleep(5)
            assert store.list(POD).items == []
            assert service(store) is None

    run_virtual(main())
