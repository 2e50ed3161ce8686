"""How an agent talks to its zygotes when they are slow or have just ended, without a zygote."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.agent.shell import supervisor as supervisor_module
from trainmaster.agent.shell.supervisor import Supervisor
from trainmaster.agent.shell.zygote_client import Link, Process, Zygotes, signal_all
from trainmaster.agent.zygote import packets

LARGE = {"VARIABLE": "x" * 50_000}
"""An environment of which a socket holds only a few."""


def zygotes_with_link() -> tuple[Zygotes, Link, socket.socket]:
    ours, theirs = packets.pair()
    zygotes = Zygotes("key", {}, lambda: None, lambda sentence: None)
    return zygotes, zygotes._adopt(Link("pristine", ours)), theirs


def start(zygotes: Zygotes, link: Link, fd: int, on_exit: Callable[[int | None], None]) -> Process:
    return zygotes.start(link, {"kind": "exec", "argv": ["true"]}, LARGE, "/", {"output": fd}, on_exit)


def test_more_ranks_than_the_socket_of_a_busy_zygote_holds_are_all_started_and_signalled() -> None:
    async def main() -> None:
        zygotes, link, theirs = zygotes_with_link()
        processes = [start(zygotes, link, 2, lambda _: None) for _ in range(20)]
        signal_all(processes, signal.SIGKILL)
        seen = []
        for _ in range(21):
            received = await asyncio.to_thread(packets.receive, theirs)
            assert received is not None
            body, fds = received
            seen.append((body["op"], body.get("id", body.get("ids")), len(fds)))
            packets.close_all(fds)
        ids = [process.id for process in processes]
        assert seen == [*(("start", id, 1) for id in ids), ("signal", ids, 0)]
        assert not link.outbox
        link.close()
        theirs.close()

    asyncio.run(main())


def test_a_process_whose_zygote_has_just_ended_ends_with_it() -> None:
    async def main() -> None:
        zygotes, link, theirs = zygotes_with_link()
        theirs.close()
        ended = asyncio.get_running_loop().create_future()
        start(zygotes, link, 2, ended.set_result)
        assert await ended is None
        assert link.socket.fileno() < 0

    asyncio.run(main())


def test_the_descriptors_of_what_a_zygote_never_read_are_closed() -> None:
    async def main() -> None:
        zygotes, link, theirs = zygotes_with_link()
        read, write = os.pipe()
        for _ in range(20):
            start(zygotes, link, write, lambda _: None)
        os.close(write)
        theirs.close()
        link.close()
        assert await asyncio.to_thread(os.read, read, 1) == b"", "a writing end of the pipe is still open"
        os.close(read)

    asyncio.run(main())


def agent_without_zygote(opened: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(supervisor_module.adopted_processes.processes, "kill_children", list)
    agent: Any = object.__new__(Supervisor)
    agent.settings = SimpleNamespace(zygote="", zygote_enabled=True)
    agent.start_method = SimpleNamespace(zygotes_changed=lambda: None)
    agent.stores = SimpleNamespace(offer_if_kept=lambda: None)
    agent.reporter = SimpleNamespace(at_once=lambda: None)
    agent.exit_code = asyncio.get_running_loop().create_future()
    agent.round = agent._waiting = agent._reopening = None
    agent.events = []

    async def open(path: str, *, bare: bool) -> None:
        await opened()
        agent.zygotes.alive = True

    agent.zygotes = SimpleNamespace(alive=False, open=open)
    return agent


def test_when_all_zygotes_end_one_successor_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        opened = []

        async def open() -> None:
            opened.append("one")
            await asyncio.sleep(0)

        agent = agent_without_zygote(open, monkeypatch)
        for _ in ("root", "pristine", "learned"):
            agent._zygotes_changed()
        await agent._reopening
        assert (opened, [event["reason"] for event in agent.events]) == (["one"], ["ZygoteLost"])
        agent.zygotes.alive = False
        agent._zygotes_changed()
        await agent._reopening
        assert opened == ["one", "one"]

    asyncio.run(main())


def test_an_agent_that_cannot_open_a_successor_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async def open() -> None:
            raise BlockingIOError("no process can be started")

        agent = agent_without_zygote(open, monkeypatch)
        agent._zygotes_changed()
        await asyncio.wait({agent._reopening})
        assert isinstance(agent.exit_code.exception(), BlockingIOError)

    asyncio.run(main())


def test_an_agent_that_can_start_no_rank_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round waits for the end of older ranks, so that it is an event and not an answer that starts it."""

    def start(*_: Any) -> None:
        raise FileNotFoundError("a script has removed the working directory")

    async def main() -> None:
        agent = agent_without_zygote(lambda: asyncio.sleep(0), monkeypatch)
        agent.old_rounds = SimpleNamespace(device_holders=list, bury=lambda: None, living=lambda: 0)
        agent.uploads = SimpleNamespace(under_way=0, newest_step=0)
        agent.directive, agent._drained_ns, agent._waiting = None, 1, (None, 0)
        agent.start_method.choose = lambda: "exec"
        agent._start = start
        agent._exited(None)
        assert isinstance(agent.exit_code.exception(), FileNotFoundError)

    asyncio.run(main())
