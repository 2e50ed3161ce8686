"""When a round that failed is one that never got going, which may be the zygote's fault; and what its start took."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.agent.shell.ranks import round as round_module
from trainmaster.agent.shell.ranks.rank_process import Rank
from trainmaster.agent.shell.ranks.round import Round
from trainmaster.agent.shell.ranks.unobserved_steps import STARTED_WELL_S
from trainmaster.agent.shell.start_method import failed_at_start
from trainmaster.contract.wire import Assignment, Cause, StoreAddress, Verdict, channel
from trainmaster.contract.wire.progress_record import COLLECTIVES


def failed(*, stepped: bool = False, lived_s: float = 0.5, **verdict: Any) -> Any:
    """A round with a verdict."""
    fields = {"rank": 0, "cause": Cause.CRASH, "round": 2, "message": "it broke", **verdict}
    return SimpleNamespace(stepped=stepped, lived_s=lived_s, verdict=Verdict(**fields))


@pytest.mark.parametrize(
    ("round", "shows_steps", "at_start"),
    [
        (failed(), True, True),
        (failed(), False, True),
        (failed(cause=Cause.HANG, lived_s=600), True, True),
        (failed(stepped=True), True, False),
        (failed(lived_s=STARTED_WELL_S + 1), True, True),  # its steps would have been seen
        (failed(lived_s=STARTED_WELL_S + 1), False, False),  # it takes none that are seen, and has run
        (failed(cascade=True), True, False),
        (failed(signal="SIGKILL"), True, False),
        (failed(cause=Cause.CONFIG_ERROR), True, False),
    ],
)
def test_only_a_round_that_broke_before_it_got_going_has_failed_at_its_start(
    round: Any, shows_steps: bool, at_start: bool
) -> None:
    assert failed_at_start(round, shows_steps=shows_steps) is at_start


def test_ranks_that_waited_for_the_zygote_have_waited_for_imports_and_not_for_the_end_of_the_old_ranks() -> None:
    assignment = Assignment(2, 1, 0, 1, 0, 1, StoreAddress("10.0.0.1", 1), 1, deadline_s=5.0)
    base, second = time.monotonic_ns(), 1_000_000_000
    obeyed, drained, forked = base - 12 * second, base - 11 * second, base - 4 * second
    times = (forked + second, forked + 2 * second, forked + 3 * second, 0, 0, 0)
    names = ("started_ns", "imported_ns", "rendezvous_ns", "built_ns", "loaded_ns", "first_step_ns")
    record = SimpleNamespace(**dict(zip(names, times, strict=True)), phase=0)
    round = Round(assignment, obeyed, own_loop=False, changed=lambda: None)
    round.ranks = [SimpleNamespace(progress=lambda: record, ended=False, number=0)]  # type: ignore[list-item]
    round.forked(drained, forked)
    assert round.watch()
    assert round.clock == {"drain": 1.0, "fork": 1.0, "imports": 8.0, "rendezvous": 1.0}
    assert round.verdict is None, "11 s have passed since the old ranks ended, but the limit of 5 s is for the start"


def test_a_round_whose_steps_are_never_seen_is_looked_at_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    second = 1_000_000_000
    round = Round(Assignment(2, 1, 0, 1, 0, 1, StoreAddress("", 1), 1), 0, own_loop=False, changed=lambda: None)
    round.forked(0, 0)
    pauses = []
    for now_s in (0, 1, 600, 30 * 86400):
        monkeypatch.setattr(round_module, "time", SimpleNamespace(monotonic_ns=lambda now_s=now_s: now_s * second))
        pauses.append(round.next_look_s())
    assert pauses == [0.02, 0.02, 6.0, 25920.0]


def test_a_rank_whose_last_message_cannot_be_understood_has_ended_all_the_same() -> None:
    ended: list[int] = []

    def understand(rank: Rank, message: dict[str, Any], fds: list[int]) -> None:
        int(message["step"])

    async def end() -> None:
        rank = Rank(3, 1, understand, lambda rank: ended.append(rank.number))
        rank._theirs.send(channel.SAVED, {"step": "the last one"})
        with pytest.raises(ValueError, match="the last one"):
            rank.exited(0)
        assert rank.ended
        rank.close()

    asyncio.run(end())
    assert ended == [3]


def test_a_rank_that_sends_messages_without_end_keeps_its_agent_from_nothing() -> None:
    heard: list[int] = []

    def answer(rank: Rank, message: dict[str, Any], fds: list[int]) -> None:
        heard.append(message["step"])
        assert len(heard) < 10_000
        rank._theirs.send(channel.SAVED, {"step": len(heard)})  # there is always a next one

    async def flood() -> None:
        rank = Rank(3, 1, answer, lambda rank: None)
        rank._theirs.send(channel.SAVED, {"step": 0})
        await asyncio.sleep(0)  # all that is due runs, and then this task goes on
        rank.exited(0)
        assert rank.ended
        rank.close()

    asyncio.run(flood())
    assert heard == [*range(len(heard))]


def test_a_message_that_is_not_json_is_dropped_with_its_descriptors_and_later_ones_are_heard() -> None:
    heard: list[str] = []

    async def main() -> None:
        rank = Rank(3, 1, lambda rank, message, fds: heard.append(message["kind"]), lambda rank: None)
        read, write = os.pipe()
        socket.send_fds(rank._theirs.socket, [b"{"], [write])
        os.close(write)
        rank._theirs.send(channel.SAVED, {})
        rank.exited(0)
        os.set_blocking(read, False)
        assert os.read(read, 1) == b"", "the descriptor is still open"
        os.close(read)
        rank.close()

    asyncio.run(main())
    assert heard == [channel.SAVED]


def test_a_collective_that_a_newer_release_knows_does_not_end_the_reports() -> None:
    async def main() -> str:
        rank = Rank(3, 1, lambda rank, message, fds: None, lambda rank: None)
        rank.record.entered(41, len(COLLECTIVES))
        told = rank.report().collective
        rank.exited(0)
        rank.close()
        return told

    assert asyncio.run(main()) == "41 collective of an unknown kind"
