"""Agents that look whether their neighbour lives: two signals instead of one."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.agent.world import World
from trainmaster.agent.shell import peer_heartbeat as ring_module
from trainmaster.agent.shell.datagrams import Datagrams
from trainmaster.agent.shell.peer_heartbeat import PONG, UNANSWERED, Ring
from trainmaster.agent.shell.restart_without_leader import FAILED, _brief
from trainmaster.contract.wire import Cause, Neighbour, StoreAddress, Verdict

WAITING = "import time\nwhile True: time.sleep(0.05)\n"


class Wire(Datagrams):
    """Datagrams that go nowhere."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None)
        self.sent: list[dict[str, Any]] = []

    def send(self, to: StoreAddress, message: dict[str, Any]) -> None:
        self.sent.append(message)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "PING_S", 0.0)
    monkeypatch.setattr(ring_module, "_AT_FIRST", 0)


def test_a_neighbour_that_answers_no_ping_in_a_row_is_lost_until_it_answers(no_pause: None) -> None:
    async def main() -> None:
        wire, changes = Wire(), asyncio.Queue[tuple[int | None, int]]()
        ring = Ring(wire, lambda: changes.put_nowait((ring.lost, len(wire.sent))))
        ring.begin(Neighbour(3, StoreAddress("127.0.0.1", 1)))
        assert ring.lost is None
        assert await changes.get() == (3, UNANSWERED)
        ring.heard(PONG, {"nonce": "of an earlier ping"}, None)
        assert ring.lost == 3
        ring.heard(PONG, {"nonce": wire.sent[-1]["nonce"]}, None)
        assert (await changes.get())[0] is None
        ring.close()

    asyncio.run(main())


def test_a_neighbour_that_answers_is_never_lost(no_pause: None) -> None:
    async def main() -> None:
        wire, changes = Wire(), []
        ring = Ring(wire, lambda: changes.append(ring.lost))
        ring.begin(Neighbour(3, StoreAddress("127.0.0.1", 1)))
        while len(wire.sent) < 50:
            ring.heard(PONG, {"nonce": wire.sent[-1]["nonce"]}, None)
            await asyncio.sleep(0)
        assert changes == []
        ring.close()

    asyncio.run(main())


def test_who_does_not_know_the_secret_is_not_heard() -> None:
    async def main() -> None:
        heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        here = Datagrams(lambda message, _: heard.put_nowait(message))
        address = StoreAddress("127.0.0.1", 0)
        await here.open(address)
        assert here._transport is not None
        to = StoreAddress(*here._transport.get_extra_info("sockname"))
        friend, stranger, nobody = (Datagrams(lambda *_: None) for _ in range(3))
        for sender, secret in ((friend, "secret"), (stranger, "guess"), (nobody, "")):
            sender.secret = secret
            await sender.open(address)
        here.secret = "secret"
        stranger.send(to, {"kind": "open", "from": "stranger"})
        nobody.send(to, {"kind": "open", "from": "nobody"})
        assert nobody._transport is not None
        nobody._transport.sendto(b"\0" * 16 + json.dumps({"kind": "open"}).encode(), (to.host, to.port))
        nobody._transport.sendto(b"short", (to.host, to.port))
        friend.send(to, {"kind": "open", "from": "friend"})
        assert (await heard.get())["from"] == "friend"
        assert heard.empty()
        for one in (here, friend, stranger, nobody):
            one.close()

    asyncio.run(main())


def test_the_words_of_any_failure_fit_into_a_datagram() -> None:
    async def main() -> None:
        heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        here = Datagrams(lambda message, _: heard.put_nowait(message))
        here.secret = "secret"
        await here.open(StoreAddress("127.0.0.1", 0))
        assert here._transport is not None
        to = StoreAddress(*here._transport.get_extra_info("sockname"))
        for message in ("\0" * 5000, '"' * 5000, "\N{WORLD MAP}\udcff" * 5000):
            verdict = Verdict(10**6, Cause.CRASH, 10**6, message, exit_code=-64, signal="SIGRTMAX", step=2**62)
            words = {"kind": FAILED, "round": 10**6, "silent": False, "verdict": _brief(verdict, 1 / 3)}
            here.send(to, words)
            assert await heard.get() == words
        here.close()

    asyncio.run(main())


@pytest.mark.processes
def test_an_agent_tells_that_its_neighbour_is_gone_and_that_it_is_back(
    make_world: Callable[..., World],
) -> None:
    world = make_world(slots=2)
    operator = world.operator
    for slot in range(2):
        world.start([sys.executable, world.script(WAITING)], slot=slot, **world.without_torch())
    operator.wait_for(lambda: len(world.rank_pids()) == 2 and all(world.rank_pids().values()), "two ranks")
    world.agents[1].send_signal(signal.SIGSTOP)
    operator.wait_for(lambda: operator.reports[-1].neighbour_lost == 1, "word of the loss")
    world.agents[1].send_signal(signal.SIGCONT)
    operator.wait_for(lambda: all(a.report and a.report.neighbour_lost is None for a in operator.agents), "the return")
