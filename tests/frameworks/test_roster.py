"""Ranks exchange their addresses at the store of their round."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from trainmaster.agent.frameworks import rank_addresses
from trainmaster.agent.frameworks.framework import Facts
from trainmaster.contract.wire import environment

TIMEOUT_S = 30


class Served:
    """A roster that another thread serves."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        served = rank_addresses.Roster(self.listener)
        while not self._over.is_set():
            served.turn(0.05)

    def facts(self, rank: int, world_size: int = 2) -> Facts:
        return Facts(rank, world_size, store_port=self.listener.getsockname()[1])

    def say(self, data: bytes) -> socket.socket:
        """Connect and say something, as a stranger or a rank would."""
        link = socket.create_connection(self.listener.getsockname(), timeout=TIMEOUT_S)
        link.sendall(data)
        return link

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.listener.close()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def told(served: Served, world_size: int = 2) -> list[list[str]]:
    """What each rank of a world gets, when all exchange their addresses at once."""
    with ThreadPoolExecutor(world_size) as ranks:
        return list(
            ranks.map(
                lambda rank: rank_addresses.exchange(
                    served.facts(rank, world_size), f"pod-{rank}:1", timeout_s=TIMEOUT_S
                ),
                reversed(range(world_size)),
            )
        )


def test_every_rank_gets_the_addresses_of_all_in_the_order_of_ranks(served: Served) -> None:
    assert told(served, 4) == [[f"pod-{rank}:1" for rank in range(4)]] * 4


def test_a_rank_that_goes_before_the_others_come_is_replaced(served: Served) -> None:
    with served.say(b'{"rank": 1, "world_size": 2, "address": "gone:1"}\n'):
        pass
    assert told(served) == [["pod-0:1", "pod-1:1"]] * 2


def test_a_rank_that_asks_again_gets_the_same_list(served: Served) -> None:
    told(served)
    assert rank_addresses.exchange(served.facts(1), "another:1", timeout_s=TIMEOUT_S) == ["pod-0:1", "pod-1:1"]


class Counted(dict[object, tuple[int, int, str]]):
    """What ranks have told. It counts how many of them are looked at."""

    looks = 0

    def values(self) -> Any:
        for value in super().values():
            self.looks += 1
            yield value


def test_the_exchange_takes_as_many_looks_as_there_are_ranks() -> None:
    """Not their square: a job may have thousands."""
    ranks = 40
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as links:
        roster = rank_addresses.Roster(listener)
        told = roster._told = Counted()
        for rank in range(ranks):
            link = links.enter_context(socket.create_connection(listener.getsockname(), timeout=TIMEOUT_S))
            link.sendall(json.dumps({"rank": rank, "world_size": ranks, "address": f"pod-{rank}:1"}).encode() + b"\n")
            while rank + 1 < ranks and len(told) <= rank:
                roster.turn(TIMEOUT_S)
        while told or not roster._answered:
            roster.turn(TIMEOUT_S)
        assert told.looks <= 5 * ranks


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"{}\n", b"x" * 5000])
def test_what_is_no_rank_is_sent_away_and_does_no_harm(served: Served, data: bytes) -> None:
    with served.say(data) as stranger:
        stranger.settimeout(TIMEOUT_S)
        assert stranger.recv(1) == b""
    assert told(served) == [["pod-0:1", "pod-1:1"]] * 2


def test_a_store_that_ends_is_told_in_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as rank:
        facts = replace(Facts(0, 2), store_port=listener.getsockname()[1])
        waiting = rank.submit(rank_addresses.exchange, facts, "pod-0:1", timeout_s=TIMEOUT_S)
        peer, _ = listener.accept()
        with peer:
            peer.recv(100)
        with pytest.raises(ConnectionResetError, match="ended before all ranks had come"):
            waiting.result(TIMEOUT_S)


def test_a_rank_chooses_a_port_that_outgoing_connections_do_not_get() -> None:
    host, _, port = rank_addresses.own_address({environment.POD_IP: "127.0.0.1"}).rpartition(":")
    assert host == "127.0.0.1"
    assert 20_000 <= int(port) < 32_000
    with socket.create_server(("127.0.0.1", int(port))):
        pass


def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    assert rank_addresses.own_address({environment.POD_IP: "::1"}).startswith("[::1]:")


def test_ranks_of_one_machine_never_choose_the_same_port() -> None:
    """They have the same address, and a port is free until its rank opens it. So each has ports of its own."""
    env = {environment.POD_IP: "127.0.0.1"}
    ports = [int(rank_addresses.own_address({**env, "RANK": str(n)}).rpartition(":")[2]) for n in range(64)]
    assert [(port - 20_000) % 64 for port in ports] == [*range(64)]
