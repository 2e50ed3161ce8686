"""A pod that reaches nobody ends by itself, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from trainmaster.agent.shell import self_fencing


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_fencing, "LEASE_S", 0.0)
    monkeypatch.setattr(self_fencing, "LOOK_S", 0.0)


def test_only_pods_of_a_cluster_know_an_api_server() -> None:
    assert self_fencing.api_server({}) is None
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert self_fencing.api_server(env) == ("10.0.0.1", 6443)


def test_a_lease_runs_out_only_when_the_api_server_is_gone_too() -> None:
    async def main() -> None:
        looks = asyncio.Queue[None]()

        def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            looks.put_nowait(None)
            writer.close()

        server = await asyncio.start_server(answered, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        over = asyncio.create_task(self_fencing.Lease((address[0], address[1])).over())
        for _ in range(3):
            await looks.get()
        assert not over.done()
        server.close()
        await server.wait_closed()
        async with asyncio.timeout(30):
            assert "neither a leader of the operators nor the API server" in await over

    asyncio.run(main())


def test_a_lease_that_an_operator_renews_asks_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(self_fencing, "LEASE_S", 3600.0)
        over = asyncio.create_task(self_fencing.Lease(("127.0.0.1", 1)).over())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not over.done()
        over.cancel()

    asyncio.run(main())


def test_a_leader_that_answers_while_the_api_server_is_asked_renews_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=100.0)
    monkeypatch.setattr(self_fencing, "time", clock)
    monkeypatch.setattr(self_fencing, "LEASE_S", 15.0)
    asked: list[float] = []

    async def asks_in_vain() -> bool:
        asked.append(clock.now)
        clock.now += 2.0
        if len(asked) == 1:
            lease.renew(clock.now - 1.0)
        return False

    lease = self_fencing.Lease(("127.0.0.1", 1))
    monkeypatch.setattr(lease, "_api_answers", asks_in_vain)
    monkeypatch.setattr(self_fencing.asyncio, "sleep", passing(clock))
    asyncio.run(lease.over())
    assert asked == [115.0, 131.0]  # the leader answered what was sent at 116, and then nobody answered


def passing(clock: SimpleNamespace) -> Callable[[float], Awaitable[None]]:
    async def sleep(seconds: float) -> None:
        clock.now += 1.0

    return sleep


def test_an_answer_that_comes_late_does_not_take_back_what_a_later_request_has_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(self_fencing, "time", SimpleNamespace(monotonic=lambda: 50.0))
    lease = self_fencing.Lease(("127.0.0.1", 1))
    for sent_at in (60.0, 55.0):  # a join is answered after reports that were sent later
        lease.renew(sent_at)
    assert lease._renewed_at == 60.0
