"""A cache that somebody else's watch feeds, and whose own lists find what that one never tells."""

import asyncio
from contextlib import asynccontextmanager

from tests.runtime.fakes import chance, cluster, job
from trainmaster_operator.cluster.port import JOB, Unavailable
from trainmaster_operator.runtime.cache.cache_records import job_key
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.virtual_clock import run_virtual

KEY = JobKey("space", "job")


@asynccontextmanager
async def fed(inner):
    told: list[JobKey] = []
    cache = Informer(
        inner, JOB, slim=lambda obj, known: obj, owner=job_key, changed=told.append, chance=chance(), relist_s=100.0
    )
    cache.told = told
    task = asyncio.create_task(cache.run())
    await cache.synced.wait()
    yield cache
    task.cancel()


def test_what_is_fed_is_seen_at_once_and_told():
    async def main():
        store, memory = cluster()
        async with fed(memory) as cache:
            cache.feed(False, store.create(JOB, job()))
            assert cache.get(KEY)["metadata"]["name"] == "job"
            assert cache.told == [KEY]
            store.delete(JOB, "space", "job")
            gone = cache.get(KEY)
            cache.feed(True, {**gone, "metadata": _later(gone)})
            assert cache.get(KEY) is None
            assert cache.told == [KEY, KEY]

    run_virtual(main())


def test_events_of_several_objects_may_come_in_any_order():
    async def main():
        store, memory = cluster()
        async with fed(memory) as cache:
            a, b = store.create(JOB, job("a")), store.create(JOB, job("b"))
            cache.feed(False, b)
            cache.feed(False, a)  # older, but of another object
            assert [key.name for key in cache.names()] == ["a", "b"]
            written = store.update_status(JOB, {**a, "status": {"round": 1}})
            assert cache.wrote(written)["status"] == {"round": 1}
            cache.feed(False, a)
            assert cache.get(JobKey("space", "a"))["status"] == {"round": 1}

    run_virtual(main())


def test_a_late_reply_does_not_bring_back_what_was_fed_as_deleted():
    async def main():
        store, memory = cluster()
        async with fed(memory) as cache:
            made = store.create(JOB, job())
            cache.feed(False, made)
            written = store.update_status(JOB, {**made, "status": {"round": 1}})
            store.delete(JOB, "space", "job")
            cache.feed(True, {**written, "metadata": _later(written)})
            assert cache.wrote(written) is None
            await asyncio.sleep(200)
            assert cache.wrote(written) is None

    run_virtual(main())


def test_an_event_that_is_older_than_a_list_is_no_news():
    async def main():
        store, memory = cluster()
        made = store.create(JOB, job())
        store.delete(JOB, "space", "job")
        store.create(JOB, job("other"))
        async with fed(memory) as cache:
            cache.told.clear()
            cache.feed(False, made)
            assert cache.get(KEY) is None
            assert cache.told == []

    run_virtual(main())


def test_a_job_that_vanished_untold_and_one_that_came_untold_are_found_by_the_next_list():
    async def main():
        store, memory = cluster()
        store.create(JOB, job("ghost"))
        async with fed(memory) as cache:
            store.delete(JOB, "space", "ghost")
            store.create(JOB, job())
            await asyncio.sleep(50)
            assert [key.name for key in cache.names()] == ["ghost"]
            await asyncio.sleep(100)
            assert [key.name for key in cache.names()] == ["job"]

    run_virtual(main())


def test_a_list_that_fails_is_tried_again_soon():
    async def main():
        store, memory = cluster()
        listed, memory.list = memory.list, None
        failures = [Unavailable("no"), Unavailable("no")]

        async def failing(*args):
            if failures:
                raise failures.pop()
            return await listed(*args)

        memory.list = failing
        store.create(JOB, job())
        async with fed(memory) as cache:
            assert asyncio.get_running_loop().time() < 1
            assert len(cache) == 1

    run_virtual(main())


def test_the_age_is_that_of_the_last_news_and_stuck_is_who_does_not_even_fail():
    async def main():
        _, memory = cluster()
        async with fed(memory) as cache:
            await asyncio.sleep(60)
            assert cache.age_s == 60
            assert cache.stuck_s == 60

            async def failing(*args):
                raise Unavailable("no")

            memory.list = failing
            await asyncio.sleep(600)
            assert cache.age_s > 600
            assert cache.stuck_s < 10

    run_virtual(main())


def _later(obj):
    """The metadata of an object's deletion, a version later."""
    meta = obj["metadata"]
    return {**meta, "resourceVersion": str(int(meta["resourceVersion"]) + 1)}
