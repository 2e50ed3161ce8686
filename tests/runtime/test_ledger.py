"""What is known of nodes: learned from any job's status, kept by one ConfigMap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.api.jobs import job
from tests.runtime import fakes
from trainmaster.contract.wire import Directive, DirectiveState
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.cluster.port import CONFIG_MAP, JOB, ApiError, Object, Unavailable
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.manifests.job_pod import pod_name, render_pod
from trainmaster_operator.manifests.services import build_service
from trainmaster_operator.planning.facts.job_state import Failure, JobState
from trainmaster_operator.planning.facts.node_suspicion import HALF_LIFE_S, weight
from trainmaster_operator.planning.facts.observation import Decision, Observation, PodRecord
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.runtime.cache.cache_records import JobRecord, job_record
from trainmaster_operator.runtime.leader.lease import LeaseSettings
from trainmaster_operator.runtime.nodes import node_health as module
from trainmaster_operator.runtime.nodes.node_health import KEY, NAME, Ledger
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.reconcile import Policies
from trainmaster_operator.runtime.virtual_clock import run_virtual

NOW = 1_700_000_000.0


class Clock:
    time = NOW

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


class Leader:
    def check(self) -> None:
        """It leads."""


class Cluster(MemoryCluster):
    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.refuses: ApiError | None = None
        self.applied: asyncio.Queue[Object] = asyncio.Queue()

    async def apply(self, kind: str, obj: Object) -> Object:
        if self.refuses is not None:
            error, self.refuses = self.refuses, None
            raise error
        done = await super().apply(kind, obj)
        self.applied.put_nowait(obj)
        return done


class World:
    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.cluster = Cluster(self.store)
        self.clock = Clock()
        self.ledger = Ledger(
            self.cluster,
            self.clock,  # type: ignore[arg-type]
            Leader(),  # type: ignore[arg-type]
            "operator",
            lambda: ["n1", "n2", "n3", ""],
        )

    def failed(self, name: str = "a", cause: str = "NodeLost", node: str = "n1", at: float = NOW) -> JobRecord:
        failure = {"cause": cause, "node": node, "round": 2, "time": rfc3339(at)}
        body = job(metadata__name=name, status={"phase": "Running", "lastFailure": failure})
        body["metadata"].update(uid=f"{name}{name}{name}-uid", resourceVersion="1", namespace="space")
        return job_record({**body, "kind": JOB}, None)

    def causes(self) -> dict[str, list[str]]:
        return {node: [mark.cause for mark in marks] for node, marks in self.ledger.suspicion().marks.items()}


def run(test: Callable[[World], Awaitable[None]], store: MemoryStore | None = None) -> None:
    async def main() -> None:
        world = World(store)
        working = asyncio.create_task(world.ledger.run())
        await asyncio.sleep(0)
        try:
            await test(world)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    asyncio.run(main())


def test_what_is_learned_before_the_config_map_is_read_is_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_AFTER_S", 0.0)
    store = MemoryStore()

    async def earlier(world: World) -> None:
        world.ledger.learn(world.failed(), ())
        await world.cluster.applied.get()

    run(earlier, store)

    async def main() -> None:
        world = World(store)
        get = world.cluster.get

        async def slow(kind: str, namespace: str, name: str) -> Object:
            found = await get(kind, namespace, name)
            world.ledger.learn(world.failed("b", node="n2"), ())
            return found

        monkeypatch.setattr(world.cluster, "get", slow)
        working = asyncio.create_task(world.ledger.run())
        async with asyncio.timeout(5):
            written = await world.cluster.applied.get()
        working.cancel()
        assert json.loads(written["data"][KEY]).keys() == {"n1", "n2"}

    asyncio.run(main())


def test_a_failure_is_learned_once_however_often_its_job_is_looked_at() -> None:
    world = World()
    for _ in range(3):
        world.ledger.learn(world.failed(), ())
    world.ledger.learn(world.failed("b"), ())
    assert world.causes() == {"n1": ["NodeLost", "NodeLost"]}
    assert world.ledger.suspicion().nodes == 3


def test_pods_that_were_turned_away_are_learned_once_too() -> None:
    world = World()
    pod = PodRecord("p", "uid-of-p", "worker", 1, 0, "Failed", node="n2", reason="OutOfcpu", rejected=True)
    for _ in range(3):
        world.ledger.learn(world.failed(cause="ConfigError"), (pod,))
    assert world.causes() == {"n2": ["Refused"]}


def test_what_was_long_ago_is_forgotten() -> None:
    world = World()
    world.ledger.learn(world.failed(), ())
    world.clock.time += 10 * HALF_LIFE_S
    assert world.causes() == {}
    world.ledger.learn(world.failed("old", at=NOW), ())
    assert world.causes() == {}


def test_the_next_leader_knows_what_this_one_wrote(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "WRITE_AFTER_S", 0.0)
    store = MemoryStore()

    async def first(world: World) -> None:
        world.ledger.learn(world.failed(), ())
        told = json.loads((await world.cluster.applied.get())["data"][KEY])["n1"]
        assert (told["score"], told["causes"], told["time"]) == (0.6, {"NodeLost": 1}, rfc3339(NOW))

    async def second(world: World) -> None:
        while not world.ledger.suspicion().marks:
            await asyncio.sleep(0)
            world.clock.time += module.COUNT_EVERY_S
        world.ledger.learn(world.failed(), ())  # the job still says so
        assert world.causes() == {"n1": ["NodeLost"]}

    run(first, store)
    run(second, store)


def test_a_leader_that_reads_a_full_list_weighs_each_reason_only_a_few_times(monkeypatch: Any) -> None:
    full = {
        f"n{n}": {"marks": [[f"{n}/{m}", "job", "NodeLost", NOW - m] for m in range(module.MARKS)]}
        for n in range(module.NODES)
    }
    store = MemoryStore()
    meta = {"name": NAME, "namespace": "operator"}
    data = {KEY: json.dumps(full)}
    store.create(CONFIG_MAP, {"apiVersion": "v1", "kind": CONFIG_MAP, "metadata": meta, "data": data})
    weighed = 0

    def count(*arguments: Any) -> float:
        nonlocal weighed
        weighed += 1
        return weight(*arguments)

    monkeypatch.setattr(module, "weight", count)

    async def test(world: World) -> None:
        while not world.ledger.suspicion().marks:
            await asyncio.sleep(0)
            world.clock.time += module.COUNT_EVERY_S
        assert len(world.ledger.suspicion().marks) == module.NODES

    run(test, store)
    assert weighed <= 4 * module.NODES * module.MARKS


def test_what_cannot_be_written_is_written_later(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "WRITE_AFTER_S", 0.0)
    monkeypatch.setattr(module, "RETRY_S", 0.0)

    async def test(world: World) -> None:
        world.cluster.refuses = Unavailable("away")
        world.ledger.learn(world.failed(), ())
        await world.cluster.applied.get()

    run(test)


def test_a_list_that_somebody_broke_is_no_list() -> None:
    for text in ("", "[]", '{"n1": 3}', '{"n1": {"marks": [[1]]}}', "nonsense"):
        store = MemoryStore()
        meta = {"name": NAME, "namespace": "operator"}
        store.create(CONFIG_MAP, {"apiVersion": "v1", "kind": CONFIG_MAP, "metadata": meta, "data": {KEY: text}})

        async def test(world: World) -> None:
            for _ in range(10):
                await asyncio.sleep(0)
            assert world.causes() == {}

        run(test, store)


def test_only_the_newest_reasons_of_a_node_are_kept() -> None:
    world = World()
    for number in range(40):
        world.ledger.learn(world.failed(f"j{number:02}", at=NOW + number), ())
    marks = world.ledger.suspicion().marks["n1"]
    assert [mark.at for mark in marks] == [NOW + number for number in range(40 - module.MARKS, 40)]


def test_an_old_reason_that_newer_ones_displaced_is_not_written_down_at_each_look() -> None:
    world = World()
    for n in range(module.MARKS):
        world.ledger.learn(world.failed(f"j{n}"), ())
    known = world.ledger.suspicion()
    displaced = world.failed("older", at=NOW - 60)
    world.ledger.learn(displaced, ())
    assert world.ledger.suspicion() is known


def test_an_operator_that_judges_nodes_writes_down_what_it_meets_and_plans_with_it() -> None:
    seen: list[dict[str, int]] = []

    def plan(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
        seen.append({node: len(marks) for node, marks in observed.suspicion.marks.items()})
        if status.lastFailure is None:
            failure = Failure(cause="NodeLost", node="n1", round=1, time=rfc3339(now))
            return Decision(status.model_copy(update={"lastFailure": failure}), intent=True)
        return Decision(status, requeue_after_s=1.0)

    async def main() -> None:
        store = MemoryStore()
        store.create(JOB, fakes.job())
        operator = Operator(
            MemoryCluster(store),
            asyncio.get_running_loop().clock,  # type: ignore[attr-defined]
            fakes.chance(),
            Settings(
                operator_url="http://o",
                identity="me",
                judge_nodes=True,
                lease=LeaseSettings(namespace="operator", takeover=True),
            ),
            Policies(plan, _wait, render_pod, build_service, pod_name),
        )
        running = asyncio.create_task(operator.run())
        await asyncio.sleep(module.WRITE_AFTER_S + 3)
        written = store.find(CONFIG_MAP, "operator", NAME)
        assert list(json.loads(written["data"][KEY])) == ["n1"]
        assert seen[-1] == {"n1": 1}
        operator.stop()
        await asyncio.wait([running], timeout=60)

    run_virtual(main())


def _wait(spec: JobSpec, status: JobState, observed: Observation) -> Callable[[int], Directive]:
    return lambda slot: Directive(observed.epoch, DirectiveState.WAIT, status.round, "")
