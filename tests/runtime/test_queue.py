"""The work queue keeps client-go's contract."""

import asyncio
import random

import pytest

from trainmaster_operator.runtime.pass_retries import FIRST_RETRY_S, LONGEST_RETRY_S
from trainmaster_operator.runtime.virtual_clock import Deadlock, VirtualClock, run_virtual
from trainmaster_operator.runtime.work_queue import ShutDown, WorkQueue


def queue(**options) -> WorkQueue[str]:
    return WorkQueue(random.Random(7), FIRST_RETRY_S, LONGEST_RETRY_S, **options)


def test_a_key_added_twice_is_handed_out_once():
    async def main():
        q = queue()
        q.add("a")
        q.add("a")
        q.add("b")
        assert [await q.get(), await q.get()] == ["a", "b"]
        assert len(q) == 0

    run_virtual(main())


def test_a_key_added_while_it_is_processed_runs_once_more_and_only_afterwards():
    async def main():
        q = queue()
        q.add("a")
        key = await q.get()
        q.add("a")
        q.add("a")
        assert len(q) == 0
        q.done(key)
        assert await q.get() == "a"
        q.done("a")
        assert len(q) == 0

    run_virtual(main())


def test_no_key_is_processed_twice_at_once_by_many_workers():
    running: set[str] = set()
    runs: list[str] = []

    async def worker(q):
        while True:
            key = await q.get()
            assert key not in running
            running.add(key)
            await asyncio.sleep(0.3)
            running.discard(key)
            runs.append(key)
            q.done(key)

    async def main():
        q = queue()
        workers = [asyncio.create_task(worker(q)) for _ in range(4)]
        for _ in range(20):
            for key in "abc":
                q.add(key)
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        for w in workers:
            w.cancel()

    run_virtual(main())
    assert 3 * 6 <= len(runs) <= 3 * 8


def test_of_two_delays_for_one_key_the_earlier_wins():
    async def main():
        clock = asyncio.get_running_loop().clock
        q = queue()
        q.add_after("a", 5)
        q.add_after("a", 2)
        q.add_after("a", 9)
        assert await q.get() == "a"
        assert clock.monotonic() == 2
        q.done("a")
        await asyncio.sleep(20)
        assert len(q) == 0

    run_virtual(main())


def test_the_back_off_doubles_up_to_its_limit_until_the_key_is_forgotten():
    async def main():
        q = queue(jitter=0.0)
        delays = []
        for _ in range(20):
            delays.append(q.add_rate_limited("a"))
            await q.get()
            q.done("a")
        assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
        assert delays[-1] == 1000
        assert q.add_rate_limited("b", limit_s=5) == 0.005
        q.forget("a")
        assert q.add_rate_limited("a") == 0.005

    run_virtual(main())


def test_jitter_only_shortens_a_back_off_and_is_drawn_from_the_injected_chance():
    async def main():
        first, second = queue(), queue()
        delays = [first.add_rate_limited(k) for k in "abcdef"]
        assert delays == [second.add_rate_limited(k) for k in "abcdef"]
        assert all(0.0025 <= d <= 0.005 for d in delays)
        assert len(set(delays)) > 1

    run_virtual(main())


def test_after_shutdown_what_waits_is_handed_out_and_then_workers_end():
    async def main():
        q = queue()
        q.add("a")
        q.add_after("later", 1)
        blocked = queue()
        getter = asyncio.create_task(blocked.get())
        await asyncio.sleep(0)
        q.shutdown()
        blocked.shutdown()
        assert await q.get() == "a"
        q.add("b")
        with pytest.raises(ShutDown):
            await q.get()
        with pytest.raises(ShutDown):
            await getter

    run_virtual(main())


def test_a_cancelled_worker_passes_its_turn_on():
    async def main():
        q = queue()
        first = asyncio.create_task(q.get())
        second = asyncio.create_task(q.get())
        await asyncio.sleep(0)
        q.add("a")
        first.cancel()
        assert await second == "a"

    run_virtual(main())


def test_virtual_time_jumps_and_a_world_that_waits_for_nothing_is_a_deadlock():
    async def main():
        await asyncio.sleep(86_400 * 3)
        await asyncio.Event().wait()

    clock = VirtualClock()
    with pytest.raises(Deadlock):
        run_virtual(main(), clock)
    assert clock.monotonic() == pytest.approx(86_400 * 3)


def test_a_queue_that_drops_hands_out_nothing_more_not_even_what_came_meanwhile():
    async def main():
        q = queue()
        q.add("a")
        q.add("b")
        key = await q.get()
        q.add(key)
        q.shutdown(drop=True)
        q.done(key)
        with pytest.raises(ShutDown):
            await q.get()

    run_virtual(main())


def test_the_age_of_the_next_key_grows_while_nobody_takes_it():
    async def main():
        q = queue()
        assert q.oldest_s == 0
        q.add("a")
        await asyncio.sleep(5)
        q.add("b")
        await asyncio.sleep(5)
        assert q.oldest_s == 10
        await q.get()
        assert q.oldest_s == 5
        assert q.processing == 1

    run_virtual(main())
