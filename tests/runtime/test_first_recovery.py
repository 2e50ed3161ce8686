"""What `helm test` says of a job, over the memory store: only a job that recovered and succeeded passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.runtime.fakes import cluster, job
from trainmaster_operator.cluster.port import JOB, Gone, NotFound, Object, WatchEvent
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.runtime import helm_test
from trainmaster_operator.runtime.helm_test import recover

Change = Callable[[MemoryStore], Any]


def status(**fields: Any) -> Change:
    return lambda store: store.update_status(JOB, {**store.find(JOB, "space", "job"), "status": fields})


def play(*changes: Change, before: Change | None = None, limit_s: float = 60.0) -> tuple[bool, list[str], MemoryStore]:
    """Run the test of a job to which these changes happen, one after another is told."""
    store, memory = cluster()
    left, said = list(changes), []
    if before:
        before(store)

    def say(words: str) -> None:
        said.append(words)
        if left and not words.startswith("kubectl"):
            asyncio.get_running_loop().call_soon(left.pop(0), store)

    return asyncio.run(recover(memory, job(), say, limit_s)), said, store


def there(store: MemoryStore) -> Object | None:
    try:
        return store.find(JOB, "space", "job")
    except NotFound:
        return None


def test_a_job_that_recovers_and_succeeds_passes_and_is_deleted() -> None:
    passed, said, store = play(
        status(phase="Running"),
        status(phase="Recovering", restarts={"inPlace": 1}),
        status(phase="Succeeded", restarts={"inPlace": 1}),
    )
    assert passed
    assert said == [
        "job space/job is created",
        "Running, 0 restarts",
        "Recovering, 1 restart",
        "Succeeded, 1 restart",
        "the job lost a rank, recovered and succeeded",
    ]
    assert there(store) is None


def test_a_job_that_succeeds_without_a_recovery_does_not_pass() -> None:
    passed, said, store = play(status(phase="Succeeded"))
    assert not passed
    assert said[-1] == "the job succeeded, but none of its ranks was restarted: nothing was recovered"
    assert there(store) is not None


def test_a_job_that_fails_is_told_with_its_reason_and_stays() -> None:
    failure = {"cause": "ImageError", "message": "no such image", "rank": None}
    passed, said, store = play(status(phase="Failed", lastFailure=failure))
    assert not passed
    assert said[-2:] == ["the job failed: no such image", "kubectl describe -n space dtj job"]
    assert there(store) is not None


def test_a_job_that_somebody_deletes_does_not_pass() -> None:
    passed, said, _ = play(lambda store: store.delete(JOB, "space", "job"))
    assert not passed
    assert said[-1] == "the job was deleted by somebody else"


def test_a_job_that_does_not_end_is_told_with_what_holds_it_up() -> None:
    waiting = {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "no node has 4 GPUs"}
    passed, said, store = play(status(phase="Pending", conditions=[waiting]), limit_s=0.05)
    assert not passed
    assert said[-2:] == [
        "the job is still Pending after 0.05 s; it stays for you to look at",
        "Scheduled is False: Unschedulable: no node has 4 GPUs",
    ]
    assert there(store) is not None


def test_what_holds_a_job_up_is_told_when_it_begins_and_once() -> None:
    """`helm test` gives up after five minutes by default, which is before the test itself does."""
    waiting = {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "no node has 4 GPUs"}
    _, said, _ = play(
        status(phase="Pending", conditions=[waiting]),
        status(phase="Pending", conditions=[waiting], restarts={"inPlace": 1}),
        status(phase="Succeeded", restarts={"inPlace": 1}),
    )
    assert said[1:4] == [
        "Pending, 0 restarts",
        "Scheduled is False: Unschedulable: no node has 4 GPUs",
        "Pending, 1 restart",
    ]


def test_what_an_earlier_test_left_is_deleted_first() -> None:
    passed, _, store = play(
        status(phase="Succeeded", restarts={"inPlace": 2}), before=lambda store: store.create(JOB, job())
    )
    assert passed
    assert there(store) is None


def test_an_api_server_that_forgets_the_watch_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helm_test, "AGAIN_S", 0.0)
    watch, refused = MemoryCluster.watch, []

    async def forgetful(self: MemoryCluster, kind: str, version: str, *rest: Any) -> AsyncIterator[WatchEvent]:
        async for event in watch(self, kind, version, *rest):
            if not refused:
                refused.append(event)
                raise Gone("too old resource version")
            yield event

    monkeypatch.setattr(MemoryCluster, "watch", forgetful)
    passed, said, _ = play(status(phase="Running"), status(phase="Succeeded", restarts={"inPlace": 1}))
    assert refused
    assert passed
    assert said[1] == "Running, 0 restarts"
