"""The event loop of a leader that thousands speak to: what decides something isn't behind all of them."""

import asyncio
import selectors
import socket

import pytest

from trainmaster_operator.runtime.turns import Turns


@pytest.fixture
def pairs():
    made = [socket.socketpair() for _ in range(40)]
    yield made
    for ends in made:
        for end in ends:
            end.close()


def test_a_turn_takes_few_and_the_next_ones_take_the_others(pairs):
    with Turns(in_a_turn=16) as turns:
        for number, (ours, theirs) in enumerate(pairs):
            turns.register(ours, selectors.EVENT_READ, number)
            theirs.send(b"x")
        seen = [[key.data for key, events in turns.select(0) if events == selectors.EVENT_READ] for _ in range(3)]
        assert [len(turn) for turn in seen] == [16, 16, 16]
        assert {number for turn in seen for number in turn} == set(range(40)), "everybody had a turn"
        for ours, _ in pairs:
            ours.recv(1)
        assert turns.select(0) == []
        for ours, _ in pairs:
            turns.unregister(ours)


def test_it_tells_what_can_be_done_and_only_what_was_asked_for(pairs):
    (ours, theirs), *_ = pairs
    with Turns() as turns:
        turns.register(ours, selectors.EVENT_WRITE)
        ((key, events),) = turns.select(None)
        assert (key.fileobj, events) == (ours, selectors.EVENT_WRITE)
        theirs.send(b"x")
        turns.modify(ours, selectors.EVENT_READ | selectors.EVENT_WRITE)
        assert turns.select(1.0)[0][1] == selectors.EVENT_READ | selectors.EVENT_WRITE
        turns.modify(ours, selectors.EVENT_READ)
        ours.recv(1)
        theirs.close()
        assert turns.select(None)[0][1] == selectors.EVENT_READ  # the end is there to be read


def test_a_task_comes_on_while_a_crowd_speaks(pairs):
    """Each step of the task is one turn, however many are ready in it."""
    loop = asyncio.SelectorEventLoop(Turns(in_a_turn=4))
    served = []
    try:
        for number, (ours, theirs) in enumerate(pairs):
            theirs.send(b"x")
            loop.add_reader(ours, served.append, number)  # never reads: it stays ready

        async def task():
            for _ in range(5):
                await asyncio.sleep(0)

        loop.run_until_complete(task())
        assert 4 <= len(served) <= 7 * 4
    finally:
        for ours, _ in pairs:
            loop.remove_reader(ours)
        loop.close()
