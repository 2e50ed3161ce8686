"""Pods that have a node and don't start: what their Events say reaches the job."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.runtime.test_refusals import operating, pods, scheduled
from trainmaster_operator.cluster.port import EVENT, POD, Unavailable
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.runtime.job_pass.pod_event_diagnosis import LONGEST_WAIT_S
from trainmaster_operator.runtime.virtual_clock import run_virtual

_numbers = itertools.count(1)
PULL = 'Failed to pull image "registry.invalid/x:1": no such host'


def say(store: Any, pod: str, reason: str, message: str, second: int, type_: str = "Warning", count: int = 1) -> None:
    uid = store.get(POD, "space", pod)["metadata"]["uid"]
    store.create(
        EVENT,
        {
            "kind": EVENT,
            "apiVersion": "v1",
            "metadata": {"name": f"{pod}.{next(_numbers)}", "namespace": "space"},
            "involvedObject": {"kind": POD, "namespace": "space", "name": pod, "uid": uid},
            "type": type_,
            "reason": reason,
            "message": message,
            "count": count,
            "lastTimestamp": f"2026-01-01T00:00:{second:02}Z",
        },
    )


async def placed(store: Any) -> None:
    """Both pods have a node and go no further."""
    while len(pods(store)) < 2:
        await asyncio.sleep(0.1)
    for name in pods(store):
        store.bind("space", name, "node")
        pod = store.get(POD, "space", name)
        store.update_status(POD, {**pod, "status": {**pod["status"], "startTime": "2026-01-01T00:00:00Z"}})


def run(test: Any, **spec: Any) -> None:
    async def main() -> None:
        async with operating(in_cluster=True, **spec) as (store, operator):
            await placed(store)
            await test(store, operator)

    run_virtual(main())


def test_an_image_that_cant_be_pulled_is_told_before_the_pods_status_tells_it() -> None:
    async def test(store: Any, operator: Any) -> None:
        say(store, "job-worker-0-0", "Pulling", "Pulling image", 1, "Normal")
        say(store, "job-worker-0-0", "Failed", PULL, 2)
        say(store, "job-worker-0-0", "Failed", "Error: ErrImagePull", 2)
        await asyncio.sleep(8)
        condition = scheduled(store)
        assert (condition["status"], condition["reason"]) == ("False", "ImageError")
        assert PULL in condition["message"]

    run(test)


def test_each_pod_that_waits_is_asked_in_turn() -> None:
    async def test(store: Any, operator: Any) -> None:
        say(store, "job-worker-1-0", "FailedMount", "no such volume", 1, count=2)
        await asyncio.sleep(10)
        assert scheduled(store)["reason"] == "FailedMount"
        assert "job-worker-1-0: FailedMount: no such volume" in scheduled(store)["message"]

    run(test)


@pytest.mark.parametrize(
    ("reason", "second", "count"),
    [("FailedScheduling", 2, 5), ("FailedMount", 2, 1), ("FailedMount", 1, 9)],
    ids=["before it had a node", "once", "before it went on"],
)
def test_what_has_passed_or_may_pass_is_not_told(reason: str, second: int, count: int) -> None:
    async def test(store: Any, operator: Any) -> None:
        say(store, "job-worker-0-0", reason, "trouble", second, count=count)
        say(store, "job-worker-0-0", "Pulling", "Pulling image", 2, "Normal")
        await asyncio.sleep(30)
        assert "trouble" not in scheduled(store).get("message", "")

    run(test)


def test_events_are_read_ever_more_rarely_and_no_more_once_the_pods_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    async def counted(cluster: MemoryCluster, namespace: str, uid: str) -> Any:
        asked.append(asyncio.get_running_loop().time())
        return []

    monkeypatch.setattr(MemoryCluster, "events_about", counted)

    async def test(store: Any, operator: Any) -> None:
        await asyncio.sleep(600)
        gaps = [round(b - a, 3) for a, b in itertools.pairwise(asked)]
        assert gaps == sorted(gaps)
        assert LONGEST_WAIT_S <= gaps[-1] < LONGEST_WAIT_S + 5
        for name in pods(store):
            pod = store.get(POD, "space", name)
            store.update_status(POD, {**pod, "status": {**pod["status"], "phase": "Running"}})
        before = len(asked)
        await asyncio.sleep(600)
        assert len(asked) == before

    run(test)


def test_events_that_cant_be_read_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def broken(cluster: MemoryCluster, namespace: str, uid: str) -> Any:
        asked.append(uid)
        raise Unavailable("no")

    monkeypatch.setattr(MemoryCluster, "events_about", broken)

    async def test(store: Any, operator: Any) -> None:
        await asyncio.sleep(30)
        assert asked
        assert operator.queue.failures(("space", "job")) == 0
        assert "ReconcileError" not in {
            c["type"] for c in store.list("DistributedTrainingJob").items[0]["status"]["conditions"]
        }

    run(test)
