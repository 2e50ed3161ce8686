"""How ranks that need each other's addresses before they begin exchange them: through the round's store.

The store is a process in the pod of rank 0 that outlives every rank. For frameworks that do not use a TCPStore it
serves this exchange instead. Each rank chooses a free port, sends {"rank": n, "address": "host:port"} in one line of
JSON, and gets the list of all addresses in one line when all ranks have sent theirs. A rank that leaves before that is
forgotten. A rank that asks again gets the same list, because its program may be a shell script that starts several
Python processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import socket
from collections.abc import Mapping

from trainmaster.agent.frameworks.framework import Facts
from trainmaster.contract.wire import environment

_PORTS = range(20_000, 32_000)
"""Ports below those that Linux gives to outgoing connections, which could otherwise take a port before it is opened."""
_TRIES = 200
_PARTS = 64
"""Into how many parts the ports are dealt out, so that ranks of one machine never choose the same one."""
_MOST_BYTES = 4096  # of what one rank tells
_CONNECT_S = 60.0


class Roster:
    """Serves the exchange of one round on a listening socket."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._said: dict[socket.socket, bytes] = {}
        self._told: dict[socket.socket, tuple[int, int, str]] = {}  # (rank, world size, address)
        self._answered = b""  # the line with all addresses, once it is known

    def serve(self) -> None:
        """Serve until the process is killed."""
        while True:
            self.turn()

    def turn(self, timeout_s: float | None = None) -> None:
        """Handle what has arrived, and answer all ranks once all of them have sent their addresses."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                peer, _ = self._listener.accept()
                peer.setblocking(False)
                self._said[peer] = b""
                self._selector.register(peer, selectors.EVENT_READ)
            else:
                assert isinstance(key.fileobj, socket.socket)
                self._hear(key.fileobj)
        self._answer()

    def _hear(self, peer: socket.socket) -> None:
        try:
            data = peer.recv(_MOST_BYTES)
        except OSError:
            data = b""
        said = self._said[peer] = self._said[peer] + data
        if not data or len(said) > _MOST_BYTES:
            self._forget(peer)
        elif said.endswith(b"\n"):
            try:
                told = json.loads(said)
                self._told[peer] = (int(told["rank"]), int(told["world_size"]), str(told["address"]))
            except (ValueError, KeyError, TypeError):
                self._forget(peer)

    def _answer(self) -> None:
        if not self._answered:
            ranks = next((size for _, size, _ in self._told.values()), 1)
            if len(self._told) < ranks:
                return  # what follows looks at all ranks, so it must not be done for each of them
            addresses = {rank: address for rank, _, address in self._told.values()}
            sizes = {size for _, size, _ in self._told.values()}
            if len(sizes) != 1 or set(addresses) != set(range(next(iter(sizes)))):
                return
            self._answered = json.dumps([addresses[rank] for rank in sorted(addresses)]).encode() + b"\n"
        for peer in list(self._told):
            peer.setblocking(True)
            with contextlib.suppress(OSError):  # it has gone, and its agent tells why
                peer.sendall(self._answered)
            self._forget(peer)

    def _forget(self, peer: socket.socket) -> None:
        self._selector.unregister(peer)
        self._said.pop(peer, None)
        self._told.pop(peer, None)
        peer.close()


def exchange(facts: Facts, own: str, *, timeout_s: float | None = None) -> list[str]:
    """Tell the round's store the address of this rank; return those of all ranks in their order once all have come.

    own: host:port. Raises OSError if the store does not answer, or ends before all ranks have come. timeout_s: how long
    the others may take; None: as long as they need, since the agent ends a round that does not start.
    """
    where = (facts.store_host, facts.store_port)
    told = {"rank": facts.rank, "world_size": facts.world_size, "address": own}
    with socket.create_connection(where, timeout=_CONNECT_S) as link:
        link.settimeout(timeout_s)
        link.sendall(json.dumps(told).encode() + b"\n")
        with link.makefile("rb") as lines:
            line = lines.readline()
    if not line.endswith(b"\n"):
        raise ConnectionResetError(f"the store of this round, {where[0]}:{where[1]}, ended before all ranks had come")
    addresses: list[str] = json.loads(line)
    return addresses


def own_address(env: Mapping[str, str]) -> str:
    """Return an address of this pod with a port that is free now and that nothing else is likely to take. No other of
    `_PARTS` neighbouring ranks takes it, which may have the same address: those of a pod, or of one machine."""
    host = env.get(environment.POD_IP) or "127.0.0.1"
    port = free_port(host, int(env.get("RANK", "0")) % _PARTS, _PARTS)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_port(host: str, part: int = 0, parts: int = 1) -> int:
    """Return a port of `host` that is free now, outside of those that outgoing connections get.

    part: which of the `parts` parts of all ports it belongs to.
    """
    choice = random.Random(os.urandom(8))  # forks must not share the state of the generator
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(_TRIES):
        port = choice.choice(_PORTS[part::parts])
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"none of {_TRIES} ports between {_PORTS.start} and {_PORTS.stop - 1} of {host} is free")
