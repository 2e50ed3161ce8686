"""Election in a thread of its own: the main loop may be busy, or stuck for good."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from tests.runtime.fakes import chance
from trainmaster_operator.cluster.port import LEASE, Unavailable
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.runtime.clock import RealClock
from trainmaster_operator.runtime.leader import election_thread
from trainmaster_operator.runtime.leader.election_thread import Election
from trainmaster_operator.runtime.leader.lease import LeaseSettings, NotLeading

QUICK = LeaseSettings(retry_s=0.02, renew_deadline_s=0.2, duration_s=0.5)
STEADY = LeaseSettings(retry_s=0.02, renew_deadline_s=10.0, duration_s=15.0)


class Server(MemoryCluster):
    """Notes in which thread it is called; `renewed` is set by each renewal."""

    def __init__(self):
        super().__init__()
        self.threads = set()
        self.renewed = threading.Event()
        self.away = False
        self.closed = False

    async def update(self, kind, obj):
        self.threads.add(threading.current_thread().name)
        if self.away:
            raise Unavailable("no answer")
        self.renewed.set()
        return await super().update(kind, obj)

    async def close(self):
        self.closed = True


@asynccontextmanager
async def electing(server, settings=QUICK, exit=lambda code: None):
    async def connect():
        return server

    made = Election(connect, RealClock(), chance(), "me", settings, exit)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def test_a_stuck_main_loop_does_not_lose_the_lease():
    async def main():
        server = Server()
        async with electing(server, STEADY) as made:
            assert await made.acquire() == 1
            holding = asyncio.create_task(made.hold())
            await asyncio.sleep(0)
            for _ in range(5):
                server.renewed.clear()
                assert server.renewed.wait(10), "no renewal while the main loop was blocked"
            assert made.leading
            made.check()
            assert server.threads == {"election"}
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            await made.release()
            assert not made.leading
            assert server.store.find(LEASE, "default", "trainmaster-operator")["spec"]["holderIdentity"] == ""
        assert server.closed

    asyncio.run(main())


def test_a_lost_lease_is_told_to_the_main_loop():
    async def main():
        server = Server()
        async with electing(server) as made:
            await made.acquire()
            server.away = True
            with pytest.raises(NotLeading):
                await made.hold()
            with pytest.raises(NotLeading):
                made.check()

    asyncio.run(main())


def test_a_main_loop_that_does_not_end_the_process_is_ended_with_it(monkeypatch):
    monkeypatch.setattr(election_thread, "EXIT_WITHIN_S", 0.05)
    ended = threading.Event()

    async def main():
        server = Server()
        async with electing(server, exit=lambda code: ended.set()) as made:
            await made.acquire()
            holding = asyncio.create_task(made.hold())
            await asyncio.sleep(0)
            server.away = True
            assert ended.wait(10), "the process was not ended"
            with pytest.raises(NotLeading):
                await holding

    asyncio.run(main())


def test_an_epoch_is_outgrown_over_there():
    async def main():
        server = Server()
        async with electing(server, STEADY) as made:
            await made.acquire()
            await made.outgrow(7)
            assert made.epoch == 8
            assert server.threads == {"election"}

    asyncio.run(main())


def test_what_hinders_the_connection_is_raised_at_the_start():
    async def connect():
        raise OSError("no route")

    async def main():
        made = Election(connect, RealClock(), chance(), "me", QUICK)
        with pytest.raises(OSError, match="no route"):
            await made.start()
        assert not made.leading
        assert made.epoch == 0
        await made.close()

    asyncio.run(main())
