"""Whatever the API server refuses or doesn't answer is told on the job in the server's words, until it heals."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.runtime.fakes import chance, cluster, job
from tests.runtime.refusing import REFUSALS, TERMINATING, Refusing, answered
from tests.runtime.test_refusals import conditions, pods, scheduled
from tests.stored import flat_status
from trainmaster_operator.cluster.port import CONFIG_MAP, EVENT, JOB, POD, REVISION, SERVICE, Forbidden
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.job_pass import refused_pod_retries
from trainmaster_operator.runtime.leader.lease import LeaseSettings
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.virtual_clock import run_virtual

LASTS_S = 20.0
HEALED_S = 40.0  # of a 403 or 422 the operator hears at its next try, half a minute later at most


@dataclass
class World:
    store: Any
    server: Refusing
    operator: Operator

    def reconcile_error(self) -> dict[str, Any]:
        return next((c for c in conditions(self.store) if c["type"] == "ReconcileError"), {})

    def events(self) -> list[str]:
        found = self.store.list(EVENT).items
        return [f"{e['reason']}: {e['message']}" for e in found if e["type"] == "Warning"]

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = flat_status(self.store.find(JOB, "space", "job").get("status"))
        return status

    def failing(self) -> dict[str, float]:
        """Jobs with failing calls, as the metric tells them, by reason."""
        # All metrics are collected once, and not once for each reason: that takes longer than the rest of a test.
        found = (m for m in self.operator.metrics.registry.collect() if m.name == "trainmaster_jobs_failing_api_calls")
        counts = {sample.labels["reason"]: sample.value for metric in found for sample in metric.samples}
        return {reason: count for reason, count in counts.items() if count}


@asynccontextmanager
async def operating(
    prepare: Callable[[Any, Refusing], None] = lambda store, server: None, names: tuple[str, ...] = ("job",)
) -> AsyncIterator[World]:
    """An operator with its own planner, and jobs of two pods; nobody runs the pods."""
    store, memory = cluster()
    server = Refusing(memory)
    prepare(store, server)
    for name in names:
        store.create(JOB, job(name))
    settings = Settings(
        operator_url="https://o",
        identity="me",
        lease=LeaseSettings(takeover=True),
        pods=PodDefaults("https://o"),
        ca_bundle=lambda: "bundle",
    )
    operator = Operator(server, asyncio.get_running_loop().clock, chance(), settings)  # type: ignore[attr-defined]
    running = asyncio.create_task(operator.run())
    yield World(store, server, operator)
    operator.stop()
    await asyncio.wait([running], timeout=60)
    assert running.done()


async def replaced(world: World) -> None:
    """The pod of slot 0 runs, and is to be replaced from now on."""
    store = world.store
    store.bind("space", "job-worker-0-0", "node")
    store.update_status(POD, {**store.get(POD, "space", "job-worker-0-0"), "status": {"phase": "Running"}})
    await asyncio.sleep(1)
    current = store.get(JOB, "space", "job")
    status = {**current["status"], "internal": {**current["status"]["internal"], "incarnations": "1,0"}}
    store.update_status(JOB, {**current, "status": status})


async def nothing_happens(world: World) -> None:
    """The job begins."""


SCHEDULED = "Scheduled"
RECONCILE_ERROR = "ReconcileError"


@dataclass(frozen=True)
class Call:
    """A call, what brings it about, the condition that tells of its failure, and what is there once it is accepted."""

    verb: str
    kind: str
    happens: Callable[[World], Awaitable[None]]
    condition: str  # "": none can be written
    attempt: str
    done: Callable[[World], bool]


def both_created(world: World) -> bool:
    return pods(world.store) == ["job-worker-0-0", "job-worker-1-0"]


def first_replaced(world: World) -> bool:
    """No kubelet confirms the end of the old one, which is there beside its successor."""
    present = [pod["metadata"] for pod in world.store.list(POD).items]
    return [meta["name"] for meta in present if "deletionTimestamp" not in meta] == ["job-worker-0-1", "job-worker-1-0"]


CALLS = {
    "create a pod": Call("create", POD, nothing_happens, SCHEDULED, "2 of 2 pods can't be created", both_created),
    "create a Service": Call("apply", SERVICE, nothing_happens, SCHEDULED, "Service job can't be", both_created),
    "write a ConfigMap": Call(
        "apply", CONFIG_MAP, nothing_happens, SCHEDULED, "ConfigMap trainmaster-ca can't be written", both_created
    ),
    "create a ControllerRevision": Call(
        "create", REVISION, nothing_happens, RECONCILE_ERROR, "ControllerRevision job-", both_created
    ),
    "delete a pod": Call(
        "delete", POD, replaced, RECONCILE_ERROR, "pod job-worker-0-0 can't be deleted", first_replaced
    ),
    "patch a pod": Call(
        "patch", POD, replaced, RECONCILE_ERROR, "the labels of pod job-worker-0-0 can't be changed", first_replaced
    ),
    "write a status": Call("update_status", JOB, nothing_happens, "", "its status can't be written", both_created),
}

PODS_REASONS = {"Forbidden": "Refused", "Invalid": "ConfigError"}
"""Where the condition Scheduled has a cause of failures instead of the server's word."""


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("name", REFUSALS)
def test_a_failure_that_lasts_is_told_in_the_servers_words_until_it_heals(name: str, call: Call) -> None:
    error, reason, words = REFUSALS[name]

    async def main() -> None:
        def prepare(store: Any, server: Refusing) -> None:
            if call.happens is nothing_happens:
                server.refuse(error, (call.verb, call.kind))

        async with operating(prepare) as world:
            await asyncio.sleep(0.5)
            await call.happens(world)
            world.server.refuse(error, (call.verb, call.kind))
            await asyncio.sleep(LASTS_S)
            assert not call.done(world)
            assert world.status().get("phase") != "Failed"
            if call.condition == SCHEDULED:
                told = scheduled(world.store)
                assert (told["status"], told["reason"]) == ("False", PODS_REASONS.get(reason, reason))
                assert world.failing() == {}
            elif call.condition == RECONCILE_ERROR:
                told = world.reconcile_error()
                assert (told["status"], told["reason"]) == ("True", reason)
                assert world.failing() == {reason: 1}
            else:
                told = {"message": f"{call.attempt}: {words}"}
                assert conditions(world.store) == []
                assert world.failing() == {reason: 1}
            assert call.attempt in told["message"]
            assert words in told["message"]
            assert any(call.attempt in event and words in event for event in world.events())
            world.server.heal()
            await asyncio.sleep(HEALED_S)
            assert call.done(world)
            assert world.reconcile_error() == {}
            if call.happens is nothing_happens:
                assert (scheduled(world.store)["status"], scheduled(world.store)["reason"]) == (
                    "Unknown",
                    "PodsStarting",
                )
            assert world.failing() == {}
            assert world.status()["phase"] == "Pending"
            assert world.status()["restarts"]["total"] == 0

    run_virtual(main())


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("name", ["409", "500", "503", "504", "time-out", "dropped"])
def test_a_failure_of_a_moment_is_told_to_nobody_and_costs_less_than_a_second(name: str, call: Call) -> None:
    error, _, _ = REFUSALS[name]

    async def main() -> None:
        def prepare(store: Any, server: Refusing) -> None:
            if call.happens is nothing_happens:
                server.refuse(error, (call.verb, call.kind))

        async with operating(prepare) as world:
            if call.happens is not nothing_happens:
                await asyncio.sleep(0.5)
                await call.happens(world)
                world.server.refuse(error, (call.verb, call.kind))
            while not world.server.calls:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            world.server.heal()
            # The end of a pod that is replaced is waited for, for five seconds.
            await asyncio.sleep(1.0 if call.happens is nothing_happens else 8.0)
            assert call.done(world)
            assert world.events() == []
            assert world.reconcile_error() == {}

    run_virtual(main())


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("code", [429, 503])
def test_a_call_is_not_repeated_before_the_server_says_and_other_jobs_go_on(code: int, call: Call) -> None:
    reason = {429: "TooManyRequests", 503: "ServiceUnavailable"}[code]

    async def main() -> None:
        async with operating() as world:
            await asyncio.sleep(0.5)
            if call.happens is not nothing_happens:
                await call.happens(world)
            world.server.refuse(answered(code, reason, "not now", "20"), (call.verb, call.kind))
            if call.happens is nothing_happens:
                world.store.create(JOB, job("other"))
            for _ in range(130):
                for name in ("job", "other"):
                    world.operator.queue.add(JobKey("space", name))  # what happens meanwhile changes nothing about it
                await asyncio.sleep(0.5)
            of_name: dict[str, list[float]] = {}
            for name, at in world.server.refused:
                of_name.setdefault(name, []).append(at)
            gaps = [b - a for calls in of_name.values() for a, b in itertools.pairwise(calls)]
            assert len(gaps) >= 2
            assert min(gaps) >= 20
            world.server.refuse(answered(code, reason, "not now", "20"), (call.verb, "no such kind"))
            world.store.create(JOB, job("third"))
            await asyncio.sleep(1)
            assert "third-worker-0-0" in pods(world.store)

    run_virtual(main())


def test_a_server_that_asks_for_an_hour_is_asked_again_after_half_a_minute() -> None:
    async def main() -> None:
        def prepare(store: Any, server: Refusing) -> None:
            server.refuse(answered(503, "ServiceUnavailable", "later", "3600"), ("create", POD))

        async with operating(prepare) as world:
            await asyncio.sleep(100)
            assert len(world.server.calls) == 4

    run_virtual(main())


def test_nothing_more_is_created_in_a_namespace_that_ends_and_it_is_said_once() -> None:
    async def main() -> None:
        def prepare(store: Any, server: Refusing) -> None:
            server.refuse(answered(403, "Forbidden", TERMINATING), ("create", POD), ("create", EVENT))

        async with operating(prepare) as world:
            await asyncio.sleep(1300)
            told = scheduled(world.store)
            assert (told["status"], told["reason"]) == ("False", "NamespaceTerminating")
            assert "because it is being terminated" in told["message"]
            assert world.status()["phase"] == "Pending"
            of_pods = [at for at in world.server.calls if at < 1]
            version = world.store.find(JOB, "space", "job")["metadata"]["resourceVersion"]
            assert len(of_pods) <= 2 + 2  # both pods side by side, and the events
            await asyncio.sleep(1300)
            assert world.store.find(JOB, "space", "job")["metadata"]["resourceVersion"] == version
            assert not [at for at in world.server.calls if at > 10]

    run_virtual(main())


def test_a_job_that_begins_in_a_namespace_that_ends_says_so_once() -> None:
    async def main() -> None:
        def prepare(store: Any, server: Refusing) -> None:
            server.refuse(answered(403, "Forbidden", TERMINATING), ("create", REVISION))

        async with operating(prepare) as world:
            await asyncio.sleep(300)
            assert world.reconcile_error()["reason"] == "NamespaceTerminating"
            assert len(world.server.calls) == 1

    run_virtual(main())


@pytest.mark.parametrize("raised_at", [1.5, 17, 99.9])
@pytest.mark.parametrize("jobs", [1, 20])
def test_a_quota_that_was_raised_is_noticed_within_ten_seconds(raised_at: float, jobs: int) -> None:
    names = tuple(f"job-{number}" for number in range(jobs))
    tries: list[float] = []

    async def main() -> None:
        def admit(kind: str, new: Any, old: Any) -> None:
            if kind == POD and old is None:
                tries.append(asyncio.get_running_loop().time())
                raise Forbidden(f'pods "{new["metadata"]["name"]}" is forbidden: exceeded quota: q')

        def prepare(store: Any, server: Refusing) -> None:
            store.admission = admit

        async with operating(prepare, names=names) as world:
            await asyncio.sleep(raised_at)
            assert pods(world.store) == []
            world.store.admission = None
            await asyncio.sleep(10)
            assert len(pods(world.store)) == 2 * jobs

    run_virtual(main())
    late = [at for at in tries if at >= raised_at - 10]
    assert raised_at < 20 or len(late) <= 10 * refused_pod_retries.TRIES_PER_S  # however many jobs wait


def test_jobs_that_wait_in_thousands_try_no_more_often_together() -> None:
    async def main() -> None:
        known = refused_pod_retries.Refusals(asyncio.get_running_loop().clock)  # type: ignore[attr-defined]
        for tries in range(12):
            for number in range(2000):
                known.note(JobKey("space", str(number)), str(number), refused_pod_retries.Refused("Refused", "quota"))
            await asyncio.sleep(tries)
        of = known.of(JobKey("space", "1"), "1")
        assert of is not None
        assert of.again_in_s == pytest.approx(2000 / refused_pod_retries.TRIES_PER_S - 11)

    run_virtual(main())


def test_a_spare_that_cant_be_created_while_ranks_train_is_told_too() -> None:
    async def main() -> None:
        async with operating(names=()) as world:
            world.store.create(JOB, job(workers={"replicas": 2, "spares": 1}))
            world.server.refuse(REFUSALS["500"][0], ("create", POD))
            await asyncio.sleep(0.5)
            current = world.store.get(JOB, "space", "job")
            began = {"number": 1, "members": "0-1", "store": "10.0.0.1:4000"}
            world.server.heal()
            await asyncio.sleep(2)
            for name in pods(world.store):
                world.store.bind("space", name, "node")
                pod = world.store.get(POD, "space", name)
                world.store.update_status(POD, {**pod, "status": {"phase": "Running"}})
            current = world.store.get(JOB, "space", "job")
            status = {**current["status"], "phase": "Running", "round": began}
            world.store.update_status(JOB, {**current, "status": status})
            await asyncio.sleep(1)
            world.server.refuse(REFUSALS["500"][0], ("create", POD))
            world.store.delete(POD, "space", "job-worker-2-0", grace_s=0)
            await asyncio.sleep(LASTS_S)
            told = world.reconcile_error()
            assert told["reason"] == "WebhookFailed"
            assert told["message"].startswith("pods without ranks cannot be created: Internal error occurred")
            assert any(event.startswith("PodsRefused") for event in world.events())
            assert scheduled(world.store)["status"] == "True"
            world.server.heal()
            await asyncio.sleep(10)
            assert world.reconcile_error() == {}
            assert len(pods(world.store)) == 3

    run_virtual(main())


def test_a_condition_that_stands_is_written_once_and_not_at_each_try() -> None:
    async def main() -> None:
        async with operating() as world:
            await asyncio.sleep(0.5)
            await replaced(world)
            world.server.refuse(REFUSALS["403"][0], ("delete", POD))
            await asyncio.sleep(5)
            version = world.store.find(JOB, "space", "job")["metadata"]["resourceVersion"]
            tried = len(world.server.calls)
            await asyncio.sleep(300)
            assert len(world.server.calls) >= tried + 5
            assert world.store.find(JOB, "space", "job")["metadata"]["resourceVersion"] == version

    run_virtual(main())


def test_where_neither_status_nor_events_can_be_written_the_log_and_a_metric_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        def prepare(store: Any, server: Refusing) -> None:
            server.refuse(REFUSALS["500"][0], ("update_status", JOB), ("create", EVENT))

        with caplog.at_level(logging.WARNING):
            async with operating(prepare) as world:
                await asyncio.sleep(120)
                assert world.store.list(EVENT).items == []
                assert conditions(world.store) == []
                registry = world.operator.metrics.registry
                assert (registry.get_sample_value("trainmaster_events_total", {"result": "failed"}) or 0) > 0
                assert world.failing() == {"WebhookFailed": 1}
        assert "its status can't be written: Internal error occurred: failed calling webhook" in caplog.text
        assert "was not written: Internal error occurred" in caplog.text

    run_virtual(main())


@pytest.mark.parametrize("name", REFUSALS)
def test_a_status_that_cannot_be_written_is_told_in_the_status_only_if_it_is_refused_for_good(name: str) -> None:
    error, reason, _ = REFUSALS[name]

    async def main() -> None:
        def prepare(store: Any, server: Refusing) -> None:
            write = server.update_status

            async def refuse_all_but_reports(kind: str, obj: Any) -> Any:
                told = (obj.get("status") or {}).get("conditions") or []
                if all(condition["type"] != RECONCILE_ERROR for condition in told):
                    raise error()
                return await write(kind, obj)

            server.update_status = refuse_all_but_reports  # type: ignore[method-assign]

        async with operating(prepare) as world:
            await asyncio.sleep(LASTS_S)
            assert any("its status can't be written" in event for event in world.events())
            assert world.reconcile_error().get("reason", "") == (reason if name in ("403", "422") else "")

    run_virtual(main())


def test_what_a_person_would_read_is_cut_to_size() -> None:
    async def main() -> None:
        def prepare(store: Any, server: Refusing) -> None:
            server.refuse(answered(500, "InternalError", "no " * 5000), ("create", POD), ("delete", POD))

        async with operating(prepare) as world:
            await asyncio.sleep(LASTS_S)
            assert 800 < len(scheduled(world.store)["message"]) <= 1000
            assert max(len(event) for event in world.events()) <= 1100

    run_virtual(main())
