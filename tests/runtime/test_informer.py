"""The informer's cache is what the server has, and never older than what we wrote."""

import asyncio
from contextlib import asynccontextmanager

from simulation.virtual.cluster_faults import Rates
from simulation.virtual.faulty_cluster import FaultyCluster
from tests.runtime.fakes import chance, cluster, job, pod
from tests.runtime.refusing import REFUSALS
from trainmaster_operator.cluster.port import JOB, POD
from trainmaster_operator.runtime.cache.cache_records import owning_job
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.virtual_clock import run_virtual


@asynccontextmanager
async def informer(inner, kind=POD, run=True):
    told: list[JobKey] = []
    cache = Informer(
        inner,
        kind,
        slim=lambda obj, known: obj,
        owner=owning_job if kind == POD else (lambda obj: JobKey("space", obj["metadata"]["name"])),
        changed=told.append,
        chance=chance(),
    )
    cache.told = told
    task = asyncio.create_task(cache.run()) if run else None
    if task:
        await cache.synced.wait()
    yield cache
    if task:
        task.cancel()


def names(cache):
    return [key.name for key in cache.names()]


def test_it_follows_creations_changes_and_deletions_and_tells_the_owner():
    async def main():
        store, memory = cluster()
        owner = store.create(JOB, job())
        store.create(POD, pod("a", owner))
        async with informer(memory) as cache:
            assert names(cache) == ["a"]
            store.create(POD, pod("b", owner))
            store.create(POD, pod("stranger"))
            store.delete(POD, "space", "a")
            await asyncio.sleep(1)
            assert names(cache) == ["b", "stranger"]
            assert [p["metadata"]["name"] for p in cache.owned(JobKey("space", "job"))] == ["b"]
            assert set(cache.told) == {JobKey("space", "job")}

    run_virtual(main())


def test_a_server_that_asks_for_patience_is_not_listed_again_before():
    async def main():
        _, memory = cluster()
        listed = []
        error = REFUSALS["429"][0]  # it asks for 7 seconds

        async def busy(*arguments):
            listed.append(asyncio.get_running_loop().time())
            raise error()

        memory.list = busy
        async with informer(memory, run=False) as cache:
            task = asyncio.create_task(cache.run())
            await asyncio.sleep(29)
            task.cancel()
        assert listed == [0, 7, 14, 21, 28]

    run_virtual(main())


def test_a_relist_forgets_what_vanished_while_nobody_watched():
    async def main():
        store, memory = cluster()
        owner = store.create(JOB, job())
        store.create(POD, pod("a", owner))
        store.create(POD, pod("b", owner))
        faulty = FaultyCluster(memory, chance())
        async with informer(faulty) as cache:
            faulty.disconnect()
            await asyncio.sleep(0)
            store.delete(POD, "space", "a")
            store.compact()
            cache.told.clear()
            await asyncio.sleep(10)
            assert cache.relists == 2
            assert names(cache) == ["b"]
            assert cache.told == [JobKey("space", "job")]

    run_virtual(main())


def test_a_reply_of_our_own_write_is_seen_at_once_and_older_events_do_not_undo_it():
    async def main():
        store, memory = cluster()
        first = store.create(JOB, job())
        async with informer(memory, JOB) as cache:
            cache.told.clear()
            second = store.update_status(JOB, {**first, "status": {"round": 1}})
            third = store.update_status(JOB, {**second, "status": {"round": 2}})
            assert cache.wrote(third)["status"] == {"round": 2}
            await asyncio.sleep(1)  # the watch now delivers the second and the third
            assert cache.get(JobKey("space", "job"))["status"] == {"round": 2}
            assert cache.told == []
            assert cache.wrote(second)["status"] == {"round": 2}

    run_virtual(main())


def test_a_reply_whose_event_was_lost_is_seen_though_later_events_came_first():
    async def main():
        store, memory = cluster()
        watch = memory.watch

        async def lossy(*arguments):
            async for event in watch(*arguments):
                if event.object["metadata"]["name"] != "a":
                    yield event

        memory.watch = lossy
        async with informer(memory) as cache:
            made = store.create(POD, pod("a"))
            store.create(POD, pod("b"))
            await asyncio.sleep(1)
            assert names(cache) == ["b"]
            assert cache.wrote(made) is not None
            assert names(cache) == ["a", "b"]

    run_virtual(main())


def test_a_late_reply_does_not_bring_a_deleted_object_back():
    async def main():
        store, memory = cluster()
        written = store.create(JOB, job())
        async with informer(memory, JOB) as cache:
            written = store.update_status(JOB, {**written, "status": {"round": 1}})
            store.delete(JOB, "space", "job")
            await asyncio.sleep(1)
            assert cache.wrote(written) is None
            assert names(cache) == []

    run_virtual(main())


def test_what_we_deleted_at_once_is_gone_although_its_events_are_still_to_come():
    async def main():
        store, memory = cluster()
        made = store.create(POD, pod("a"))
        async with informer(memory) as cache:
            changed = store.update_status(POD, {**made, "status": {"phase": "Running"}})
            store.delete(POD, "space", "a", uid=changed["metadata"]["uid"], grace_s=0)
            cache.removed(JobKey("space", "a"), changed["metadata"]["uid"])
            assert names(cache) == []
            await asyncio.sleep(1)
            assert names(cache) == []
            store.create(POD, pod("a"))  # the same name, another object
            await asyncio.sleep(1)
            assert names(cache) == ["a"]

    run_virtual(main())


def test_a_reply_newer_than_a_relist_survives_it():
    async def main():
        store, memory = cluster()
        async with informer(memory, run=False) as cache:
            listing = await memory.list(POD)

            async def stale_list(*args):
                cache.wrote(store.create(POD, pod("new")))
                return listing

            cache._cluster = memory
            memory.list = stale_list
            task = asyncio.create_task(cache.run())
            await cache.synced.wait()
            assert names(cache) == ["new"]
            task.cancel()

    run_virtual(main())


def test_broken_streams_duplicates_and_expiry_leave_the_cache_right():
    async def main():
        store, memory = cluster()
        rates = Rates(fail=0.2, duplicate=0.2, disconnect=0.2, end=0.2, expire=0.2)
        async with informer(FaultyCluster(memory, chance(), rates=rates)) as cache:
            for n in range(60):
                store.create(POD, pod(f"pod-{n}"))
                if n % 3 == 0:
                    store.delete(POD, "space", f"pod-{n // 2}")
                await asyncio.sleep(0.3)
            await asyncio.sleep(60)
            assert names(cache) == [p["metadata"]["name"] for p in store.list(POD).items]
            assert cache.relists > 1

    run_virtual(main())
