"""Each fault does what it says, by script and by seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

import pytest

from simulation.virtual import faulty_cluster
from simulation.virtual.cluster_faults import CrashPoint, Fault, OperatorCrash, Rates, Scripted
from simulation.virtual.faulty_cluster import FaultyCluster
from tests.cluster.conformance import SCENARIOS, Scenario, World
from tests.cluster.examples import lease, pod
from tests.cluster.scenario import forgotten_by
from trainmaster_operator.cluster.port import (
    LEASE,
    POD,
    AlreadyExists,
    ApiError,
    Cluster,
    Conflict,
    Gone,
    NotFound,
    TooManyRequests,
    Unavailable,
    WatchEvent,
)
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.runtime.virtual_clock import run_virtual


def scripted(inner: Cluster, *script: Scripted) -> FaultyCluster:
    return FaultyCluster(inner, random.Random(0), script=script)


async def names(cluster: Cluster) -> list[str]:
    return [obj["metadata"]["name"] for obj in (await cluster.list(POD)).items]


async def taken(cluster: Cluster, since: str, count: int) -> list[str]:
    """The names in the next `count` events."""
    seen: list[str] = []
    async for event in cluster.watch(POD, since):
        seen.append(event.object["metadata"]["name"])
        if len(seen) == count:
            break
    return seen


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_without_faults_it_is_a_cluster_like_any_other(scenario: Scenario) -> None:
    async def run() -> None:
        memory = MemoryCluster()
        cluster = FaultyCluster(memory, random.Random(0), latency_s=(0.0, 0.001))
        await scenario(World(cluster, "space", collects_garbage=True, forgotten=forgotten_by(memory.store)))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "error", "stored"),
    [
        (Fault.FAIL, Unavailable, []),
        (Fault.THROTTLE, TooManyRequests, []),
        (Fault.LOSE, Unavailable, ["a"]),
        (Fault.CONFLICT, Conflict, []),
    ],
)
def test_a_write_meets_its_fault_once(fault: Fault, error: type[ApiError], stored: list[str]) -> None:
    async def run() -> None:
        memory = MemoryCluster()
        cluster = scripted(memory, Scripted("write", 1, fault))
        with pytest.raises(error):
            await cluster.create(POD, pod("s", "a"))
        assert await names(memory) == stored
        if stored:
            with pytest.raises(AlreadyExists):
                await cluster.create(POD, pod("s", "a"))
        else:
            await cluster.create(POD, pod("s", "a"))
        assert cluster.written == ["create Pod s/a"] * 2

    asyncio.run(run())


def test_a_lease_meets_faults_where_they_are_drawn_for_writes_that_do_not_count() -> None:
    async def run() -> None:
        memory = MemoryCluster()
        calm = FaultyCluster(memory, random.Random(0), rates=Rates(fail=1.0))
        await calm.create(LEASE, lease("space", "a"))
        crash = CrashPoint(1, "before")
        harsh = FaultyCluster(memory, random.Random(0), rates=Rates(fail=1.0), crash=crash, uncounted=random.Random(0))
        with pytest.raises(Unavailable):
            await harsh.create(LEASE, lease("space", "b"))
        assert (harsh.writes, harsh.crashed) == (0, False)
        assert [obj["metadata"]["name"] for obj in (await memory.list(LEASE)).items] == ["a"]

    asyncio.run(run())


def test_a_late_write_lands_after_the_client_has_given_up() -> None:
    async def run() -> None:
        memory = MemoryCluster()
        since = str(memory.store.version)
        cluster = scripted(memory, Scripted("write", 1, Fault.LATE))
        cluster.late_s = (0.0, 0.0)
        with pytest.raises(Unavailable):
            await cluster.create(POD, pod("s", "a"))
        cluster.die()
        assert await names(memory) == []
        assert await taken(memory, since, 1) == ["a"]

    asyncio.run(run())


def test_a_stale_list_is_an_older_truth_from_which_a_watch_catches_up() -> None:
    async def run() -> None:
        memory = MemoryCluster()
        cluster = FaultyCluster(memory, random.Random(0), script=[Scripted("list", 2, Fault.STALE)], lag=2)
        for name in "abc":
            await cluster.create(POD, pod("s", name))
        assert await names(cluster) == ["a", "b", "c"]
        stale = await cluster.list(POD)
        assert [obj["metadata"]["name"] for obj in stale.items] == ["a"]
        assert await taken(cluster, stale.resource_version, 2) == ["b", "c"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (Fault.DROP, ["a", "c"]),
        (Fault.DUPLICATE, ["a", "b", "b", "c"]),
        (Fault.DELAY, ["a", "b", "c"]),
        (Fault.REORDER, ["a", "c", "b"]),
        (Fault.DISCONNECT, ["a", Unavailable, "b", "c"]),
        (Fault.END, ["a", "end", "b", "c"]),
        (Fault.EXPIRE, ["a", Gone, "b", "c"]),
    ],
)
def test_an_event_meets_its_fault(fault: Fault, seen: list[object]) -> None:
    async def run() -> None:
        memory = MemoryCluster()
        cluster = scripted(memory, Scripted("event", 2, fault))
        cluster.late_s = (0.0, 0.01)
        version = str(memory.store.version)
        for name in "abc":
            await memory.create(POD, pod("s", name))
        told: list[object] = []
        while len(told) < len(seen):
            try:
                async for event in cluster.watch(POD, version):
                    version = event.object["metadata"]["resourceVersion"]
                    told.append(event.object["metadata"]["name"])
                    if len(told) == len(seen):
                        break
                else:
                    told.append("end")
            except ApiError as error:
                told.append(type(error))
        assert told == seen

    asyncio.run(run())


def test_an_outage_refuses_calls_breaks_watches_and_ends() -> None:
    async def run() -> None:
        memory = MemoryCluster()
        cluster = FaultyCluster(memory, random.Random(0))

        async def watched() -> WatchEvent:
            return await anext(cluster.watch(POD, "0"))

        watching = asyncio.create_task(watched())
        await asyncio.sleep(0)
        outage = asyncio.create_task(cluster.outage(0.01))
        with pytest.raises(Unavailable):
            await watching
        calls: list[Awaitable[object]] = [
            cluster.list(POD),
            cluster.get(POD, "s", "a"),
            cluster.create(POD, pod("s", "a")),
            watched(),
        ]
        for call in calls:
            with pytest.raises(Unavailable):
                await call
        await outage
        await cluster.create(POD, pod("s", "a"))

    asyncio.run(run())


@pytest.mark.parametrize(("when", "stored"), [("before", ["a"]), ("after", ["a", "b"])])
def test_a_crash_ends_the_client_at_its_write_and_for_good(when: str, stored: list[str]) -> None:
    async def run() -> None:
        memory = MemoryCluster()
        cluster = FaultyCluster(memory, random.Random(0), crash=CrashPoint(2, when))  # type: ignore[arg-type]

        async def watched() -> WatchEvent:
            return await anext(cluster.watch(POD, str(memory.store.version + 100)))

        await cluster.create(LEASE, lease("s", "not-counted"))
        await cluster.create(POD, pod("s", "a"))
        with pytest.raises(OperatorCrash, match=f"{when} write 2: create Pod s/b"):
            await cluster.create(POD, pod("s", "b"))
        assert await names(memory) == stored
        calls: list[Awaitable[object]] = [cluster.list(POD), cluster.delete(POD, "s", "a"), watched()]
        for call in calls:
            with pytest.raises(OperatorCrash):
                await call
        assert await names(memory) == stored
        assert not issubclass(OperatorCrash, Exception)

    asyncio.run(run())


def test_a_crash_ends_an_open_watch() -> None:
    async def run() -> None:
        cluster = FaultyCluster(MemoryCluster(), random.Random(0))

        async def watched() -> WatchEvent:
            return await anext(cluster.watch(POD, "0"))

        watching = asyncio.create_task(watched())
        await asyncio.sleep(0)
        cluster.die()
        with pytest.raises(OperatorCrash):
            await watching

    asyncio.run(run())


def test_the_same_seed_gives_the_same_faults_and_a_script_does_not_shift_them() -> None:
    async def outcomes(seed: int, *script: Scripted) -> list[str]:
        rates = Rates(fail=0.2, lose=0.2, conflict=0.2)
        cluster = FaultyCluster(MemoryCluster(), random.Random(seed), rates=rates, script=script)
        result = []
        for index in range(50):
            try:
                await cluster.create(POD, pod("s", f"p{index}"))
                result.append("stored")
            except ApiError as error:
                result.append(str(error))
        return result

    first = asyncio.run(outcomes(1))
    assert first == asyncio.run(outcomes(1))
    assert first != asyncio.run(outcomes(2))
    assert len(set(first)) == 4
    scripted_run = asyncio.run(outcomes(1, Scripted("write", 7, Fault.CONFLICT)))
    assert scripted_run[:6] + scripted_run[7:] == first[:6] + first[7:]


def test_an_event_passes_none_of_its_own_object_and_is_not_held_back_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulty_cluster, "HELD_S", 0.01)

    async def run() -> None:
        memory = MemoryCluster()
        since = str(memory.store.version)
        cluster = scripted(memory, Scripted("event", 1, Fault.REORDER), Scripted("event", 3, Fault.REORDER))
        await memory.create(POD, pod("s", "a"))
        await memory.patch(POD, "s", "a", {"metadata": {"labels": {"new": "yes"}}})
        await memory.create(POD, pod("s", "b"))
        seen = []
        async for event in cluster.watch(POD, since):
            seen.append((event.type, event.object["metadata"]["name"]))
            if len(seen) == 3:
                break
        assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b")]

    asyncio.run(run())


def test_what_is_frozen_takes_effect_later() -> None:
    async def main() -> None:
        memory = MemoryCluster()
        cluster = FaultyCluster(memory, random.Random(0), latency_s=(0.1, 0.1))
        writing = asyncio.ensure_future(cluster.create(POD, pod("s", "a")))
        await asyncio.sleep(0.05)
        cluster.freeze(5.0)
        await asyncio.sleep(4.9)
        assert await names(memory) == []
        await asyncio.sleep(0.2)
        assert await names(memory) == ["a"]
        await writing

    run_virtual(main())


def test_errors_of_the_inner_cluster_pass_through() -> None:
    async def run() -> None:
        cluster = FaultyCluster(MemoryCluster(), random.Random(0))
        with pytest.raises(NotFound):
            await cluster.evict("s", "a")

    asyncio.run(run())
