"""Copies what ranks save to this pod's memory to a peer's memory, in the background.

All ranks of the world offer the same steps: they save the next one when they know that all copies of the last one have
arrived (`Control.copied_step`). So there is always a step of which all copies exist.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence

from trainmaster.checkpoint.files.memory_tier import RamFolder
from trainmaster.checkpoint.files.peer_client import Peer
from trainmaster.checkpoint.files.peer_connection import Refused
from trainmaster.contract.wire.messages import StoreAddress

_NICENESS = 5  # of this thread: ranks come first
_AGAIN_S = 5.0  # after a failure ranks go on without copies for so long

State = tuple[int, int, int]
"""(step, round, rank)"""


class Replicas:
    """`ended(state, problem)` is called in our thread when a copy has arrived ("") or failed (the reason)."""

    def __init__(self, folder: RamFolder, ended: Callable[[State, str], None]) -> None:
        self._folder, self._ended = folder, ended
        self._wake = threading.Condition()
        self._waiting: dict[int, State] = {}  # the newest of each rank
        self._round, self._secret = 0, ""
        self._addresses: tuple[StoreAddress, ...] = ()
        self._links: dict[StoreAddress, Peer] = {}
        self._paused_until = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def on(self) -> bool:
        """Return True if states that are offered now are copied."""
        return bool(self._addresses and self._secret) and time.monotonic() >= self._paused_until

    def begin(self, round: int, addresses: Sequence[StoreAddress], secret: str) -> None:
        """Note that a round begins. States of the round before are no longer sent."""
        with self._wake:
            self._round, self._addresses, self._secret = round, tuple(addresses), secret
            self._paused_until = 0.0
            self._waiting.clear()

    def move(self, round: int, addresses: Sequence[StoreAddress]) -> None:
        """Use other addresses for the peers of this round."""
        with self._wake:
            if round == self._round:
                self._addresses = tuple(addresses)

    def offer(self, state: State) -> None:
        """Copy a state that a rank has saved. It replaces an older state of the same rank that still waits."""
        with self._wake:
            if self._closed or state[1] != self._round or not self.on:
                return
            self._waiting[state[2]] = state
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="replicas", daemon=True)
                self._thread.start()
            self._wake.notify()

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)  # of this thread alone
        while (work := self._next()) is not None:
            state, addresses, secret = work
            problem = self._copy(state, addresses, secret)
            with self._wake:
                if problem is None or state[1] != self._round:
                    continue
                if problem:
                    self._paused_until = time.monotonic() + _AGAIN_S
                    self._waiting.clear()
            self._ended(state, problem)
        for link in self._links.values():
            link.close()

    def _next(self) -> tuple[State, tuple[StoreAddress, ...], str] | None:
        with self._wake:
            while not self._waiting and not self._closed:
                self._wake.wait()
            if self._closed:
                return None
            rank = min(self._waiting, key=lambda rank: self._waiting[rank][0])  # who waits longest
            return self._waiting.pop(rank), self._addresses, self._secret

    def _copy(self, state: State, addresses: tuple[StoreAddress, ...], secret: str) -> str | None:
        """Return why the copy failed, "" when every peer has it, or None if the state no longer exists."""
        for address in addresses:
            try:
                self._send(state, address, secret)
            except FileNotFoundError:
                return None
            except OSError as error:
                return f"{address.host}:{address.port}: {error}"
        return ""

    def _send(self, state: State, address: StoreAddress, secret: str) -> None:
        """Send a state. If a kept connection has been closed, open a new one, once."""
        while True:
            link = self._links.pop(address, None)
            kept = link is not None
            try:
                link = link or Peer(address, secret)
                link.keep(self._folder, *state)
            except OSError as error:
                if link is not None:
                    link.close()
                if not kept or (isinstance(error, Refused) and error.status != 403):
                    raise
            else:
                self._links[address] = link
                return
