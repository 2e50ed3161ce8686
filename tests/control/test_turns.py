"""The event loop of a leader that thousands speak to: what decides something isn't behind all of them."""

import asyncio
import selectors
import socket

import pytest

from trainmaster_operator.control.crowd_event_loop import TurnLoop, Turns


@pytest.fixture
def pairs():
    made = [socket.socketpair() for _ in range(40)]
    yield made
    for ends in made:
        for end in ends:
            end.close()


def test_a_turn_takes_few_of_the_crowd_and_the_next_ones_take_the_others(pairs):
    with Turns(in_a_turn=16) as turns:
        for number, (ours, theirs) in enumerate(pairs):
            turns.crowd.add(ours.fileno())
            turns.register(ours, selectors.EVENT_READ, number)
            theirs.send(b"x")
        seen = [[key.data for key, events in turns.select(0) if events == selectors.EVENT_READ] for _ in range(3)]
        assert [len(turn) for turn in seen] == [16, 16, 16]
        assert {number for turn in seen for number in turn} == set(range(40)), "everybody had a turn"
        for ours, _ in pairs:
            ours.recv(1)
        assert turns.select(0) == []
        for ours, _ in pairs:
            assert turns.unregister(ours).fileobj is ours
        assert len(turns.get_map()) == 1  # the crowd itself


def test_who_is_not_of_the_crowd_has_each_turn(pairs):
    with Turns(in_a_turn=2) as turns:
        *crowd, (one, to_one), (two, to_two) = pairs
        for ours, theirs in crowd:
            turns.crowd.add(ours.fileno())
            turns.register(ours, selectors.EVENT_READ)
            theirs.send(b"x")
        turns.register(one, selectors.EVENT_READ)
        turns.register(two, selectors.EVENT_READ)
        for _ in range(3):
            for theirs in (to_one, to_two):
                theirs.send(b"x")
            ready = [key.fileobj for key, _ in turns.select(None)]
            assert len(ready) == 4
            assert {one, two} <= set(ready)
            for ours in (one, two):
                ours.recv(1)


@pytest.mark.parametrize("of_crowd", [True, False])
def test_it_tells_what_can_be_done_and_only_what_was_asked_for(pairs, of_crowd):
    (ours, theirs), *_ = pairs
    with Turns() as turns:
        if of_crowd:
            turns.crowd.add(ours.fileno())
        turns.register(ours.fileno(), selectors.EVENT_WRITE, "data")
        ((key, events),) = turns.select(None)
        assert (key.fd, key.data, events) == (ours.fileno(), "data", selectors.EVENT_WRITE)
        assert turns.get_key(ours.fileno()) is key
        assert turns.get_map()[ours.fileno()] is key
        theirs.send(b"x")
        turns.modify(ours.fileno(), selectors.EVENT_READ | selectors.EVENT_WRITE)
        assert turns.select(1.0)[0][1] == selectors.EVENT_READ | selectors.EVENT_WRITE
        turns.modify(ours.fileno(), selectors.EVENT_READ)
        ours.recv(1)
        assert turns.select(0) == []
        theirs.close()
        assert turns.select(None)[0][1] == selectors.EVENT_READ  # the end is there to be read
        turns.unregister(ours.fileno())
        with pytest.raises(KeyError):
            turns.get_key(ours.fileno())


def test_a_connection_is_of_the_crowd_until_it_is_closed():
    loop = TurnLoop()
    try:

        async def main():
            crowd = loop._turns.crowd
            served = asyncio.Event()

            class Echo(asyncio.Protocol):
                def connection_made(self, transport):
                    self.transport = transport

                def data_received(self, data):
                    self.transport.write(data)
                    self.transport.close()
                    served.set()

            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            await loop.connect_accepted_socket(Echo, loop.in_crowd(ours))
            assert len(crowd) == 1
            await loop.sock_sendall(theirs, b"hello")
            assert await loop.sock_recv(theirs, 100) == b"hello"
            await served.wait()
            assert await loop.sock_recv(theirs, 100) == b""
            assert crowd == set()
            theirs.close()

        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_task_comes_on_while_a_crowd_speaks(pairs):
    """Each step of the task is one turn, however many of the crowd are ready in it."""
    loop = TurnLoop()
    served = []
    mine, others = pairs[0]
    crowd = []
    try:
        for number, (ours, theirs) in enumerate(pairs[1:]):
            crowd.append(loop.in_crowd(ours))
            theirs.send(b"x")
            loop.add_reader(crowd[-1], served.append, number)  # never reads: it stays ready

        async def task():
            for _ in range(5):
                others.send(b"x")
                mine.setblocking(False)
                assert await loop.sock_recv(mine, 1) == b"x"

        loop.run_until_complete(task())
        assert 0 < len(served) <= 12 * 16
    finally:
        for ours in crowd:
            loop.remove_reader(ours)
            ours.close()
        loop.close()
