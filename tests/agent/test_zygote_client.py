"""How an agent talks to its zygotes when they are slow or have just ended, without a zygote."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable

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
