"""Events for people: each told once, what repeats with a count, and nobody's flood at another's cost."""

import asyncio
import itertools
from contextlib import asynccontextmanager

from tests.runtime.fakes import cluster, job
from tests.runtime.refusing import REFUSALS, Refusing
from trainmaster_operator.cluster.port import EVENT, JOB
from trainmaster_operator.planning.facts.observation import EventType, PlannedEvent
from trainmaster_operator.runtime.cache.cache_records import job_record
from trainmaster_operator.runtime.observability import events
from trainmaster_operator.runtime.observability.events import EventWriter
from trainmaster_operator.runtime.virtual_clock import run_virtual


class Counts(dict):
    def __call__(self, result):
        self[result] = self.get(result, 0) + 1


@asynccontextmanager
async def writing(inner, counts=None):
    writer = EventWriter(inner, asyncio.get_running_loop().clock, counted=counts if counts is not None else Counts())
    task = asyncio.create_task(writer.run())
    yield writer
    task.cancel()


def record(store, name="job"):
    return job_record(store.create(JOB, job(name)), None)


def planned(reason="Recovering", message="round 2", type=EventType.WARNING):
    return PlannedEvent(type, reason, message)


def told(store):
    return [(e["type"], e["reason"], e["message"], e["count"]) for e in store.list(EVENT).items]


def test_a_decision_is_told_once_however_often_its_write_is_told():
    async def main():
        store, memory = cluster()
        mine = record(store)
        for _ in range(2):  # an operator, and the one after it
            async with writing(memory) as writer:
                writer.emit(mine, [planned(), planned("RoundOpened", "round 2: 4 ranks", EventType.NORMAL)])
                await asyncio.sleep(1)
        assert told(store) == [
            ("Warning", "Recovering", "round 2", 1),
            ("Normal", "RoundOpened", "round 2: 4 ranks", 1),
        ]
        (first, _) = store.list(EVENT).items
        assert first["involvedObject"]["uid"] == mine.uid
        assert "eventTime" not in first  # an API server would then ask for more that only controllers of its own have

    run_virtual(main())


def test_what_repeats_is_one_event_with_a_count_and_the_time_of_the_last():
    async def main():
        store, memory = cluster()
        mine = record(store)
        async with writing(memory) as writer:
            for _ in range(3):
                writer.remark(mine, EventType.WARNING, "ReconcileError", "no idea")
                await asyncio.sleep(10)
        assert told(store) == [("Warning", "ReconcileError", "no idea", 3)]
        (event,) = store.list(EVENT).items
        assert event["lastTimestamp"] > event["firstTimestamp"]

    run_virtual(main())


def test_what_comes_again_after_a_long_time_is_told_anew():
    async def main():
        store, memory = cluster()
        mine = record(store)
        async with writing(memory) as writer:
            for _ in range(2):
                writer.remark(mine, EventType.NORMAL, "Resumed", "again")
                await asyncio.sleep(events.FORGOTTEN_S + 1)
        assert [event[3] for event in told(store)] == [1, 1]

    run_virtual(main())


def test_an_event_that_has_expired_is_told_anew():
    async def main():
        store, memory = cluster()
        mine = record(store)
        async with writing(memory) as writer:
            for _ in range(3):
                writer.remark(mine, EventType.NORMAL, "Resumed", "again")
                await asyncio.sleep(10)
                for event in store.list(EVENT).items:
                    store.delete(EVENT, "space", event["metadata"]["name"])
            writer.remark(mine, EventType.NORMAL, "Resumed", "again")
            await asyncio.sleep(10)
        assert len(told(store)) == 1

    run_virtual(main())


def test_a_job_with_too_much_to_say_is_cut_short_and_others_are_not():
    async def main():
        store, memory = cluster()
        loud, quiet = record(store, "loud"), record(store, "quiet")
        counts = Counts()
        async with writing(memory, counts) as writer:
            for number in range(200):
                writer.relay(loud, "Agent", f"something {number}")
            writer.emit(loud, [planned()])
            writer.relay(quiet, "Agent", "something else")
            await asyncio.sleep(10)
            assert counts["dropped"] == 200 - events.BURST
            reasons = [event[1] for event in told(store)]
            assert reasons.count("Recovering") == 1  # what its agents say doesn't crowd out decisions
            assert "something else" in [event[2] for event in told(store)]
            await asyncio.sleep(events.REFILL_S)
            writer.relay(loud, "Agent", "much later")
            await asyncio.sleep(10)
            assert "much later" in [event[2] for event in told(store)]

    run_virtual(main())


def test_a_flood_of_the_same_words_costs_few_calls_and_is_counted():
    async def main():
        store, memory = cluster()
        mine = record(store)
        counts = Counts()
        async with writing(memory, counts) as writer:
            for _ in range(1000):
                writer.relay(mine, "UploadsPending", "3 uploads are still under way")
                await asyncio.sleep(0.01)
            await asyncio.sleep(10)
        assert counts["told"] == 1
        assert counts["counted"] <= events.BURST
        ((type, reason, _, count),) = told(store)
        assert (type, reason) == ("Warning", "UploadsPending")
        assert count > 100

    run_virtual(main())


def test_counts_of_a_job_that_is_gone_are_not_written():
    async def main():
        store, memory = cluster()
        mine, other = record(store), record(store, "other")
        counts = Counts()
        async with writing(memory, counts) as writer:
            for each in (mine, other, mine, other):
                writer.relay(each, "Agent", "the same words")
                await asyncio.sleep(1)
            writer.forget(mine.key)
            await asyncio.sleep(60)
        assert counts == {"told": 2, "counted": 1}

    run_virtual(main())


def test_an_agent_s_words_may_be_anything():
    async def main():
        store, memory = cluster()
        mine = record(store)
        async with writing(memory) as writer:
            writer.relay(mine, "no reason\n", "x" * 10_000)
            writer.relay(mine, "CheckpointFailed", "disk full")
            await asyncio.sleep(1)
        assert [(t, r, len(m)) for t, r, m, _ in told(store)] == [
            ("Normal", "Agent", 1000),
            ("Warning", "CheckpointFailed", 9),
        ]

    run_virtual(main())


def test_a_server_that_refuses_events_harms_nobody(caplog):
    async def main():
        store, memory = cluster()
        mine = record(store)
        counts = Counts()
        server = Refusing(memory)
        server.refuse(REFUSALS["403"][0], ("create", EVENT))
        async with writing(server, counts) as writer:
            writer.emit(mine, [planned()])
            await asyncio.sleep(1)
            assert counts == {"failed": 1}
            server.heal()
            writer.emit(mine, [planned("Recovered", "in 1 s", EventType.NORMAL)])
            await asyncio.sleep(1)
        assert [event[1] for event in told(store)] == ["Recovered"]

    run_virtual(main())
    assert "it says Recovering: round 2" in caplog.text


def test_an_event_that_a_server_does_not_take_now_is_told_when_it_does():
    async def main():
        store, memory = cluster()
        mine = record(store)
        counts = Counts()
        server = Refusing(memory)
        server.refuse(REFUSALS["503"][0], ("create", EVENT))
        async with writing(server, counts) as writer:
            writer.emit(mine, [planned()])
            await asyncio.sleep(10)
            assert (counts, len(server.calls)) == ({}, 4)
            server.heal()
            await asyncio.sleep(10)
            assert counts == {"told": 1}
        assert [event[1] for event in told(store)] == ["Recovering"]

    run_virtual(main())


def test_an_event_that_is_never_taken_is_given_up_and_stands_in_the_log(caplog):
    async def main():
        store, memory = cluster()
        mine = record(store)
        counts = Counts()
        server = Refusing(memory)
        server.refuse(REFUSALS["429"][0], ("create", EVENT))
        async with writing(server, counts) as writer:
            writer.emit(mine, [planned()])
            await asyncio.sleep(600)
            assert (counts, len(server.calls)) == ({"failed": 1}, events.TRIES)
            assert all(b - a >= 7 for a, b in itertools.pairwise(server.calls))  # the server asks for it

    run_virtual(main())
    assert "it says Recovering: round 2" in caplog.text


def test_the_end_of_the_process_waits_for_the_last_events_but_not_long():
    async def main():
        store, memory = cluster()
        mine = record(store)
        writer = EventWriter(memory, asyncio.get_running_loop().clock)
        writer.emit(mine, [planned()])
        await writer.drain()
        assert len(told(store)) == 1

        async def never(*args):
            await asyncio.Event().wait()

        memory.create = never
        writer.emit(mine, [planned("Failed", "at last")])
        began = asyncio.get_running_loop().time()
        await writer.drain()
        assert asyncio.get_running_loop().time() - began == events.DRAIN_S

    run_virtual(main())
