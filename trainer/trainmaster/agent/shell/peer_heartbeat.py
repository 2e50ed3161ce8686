"""The heartbeat ring: each agent pings the next agent of its round four times a second.

The operator hears each agent only at intervals, and from one place. A neighbour that does not answer either is a second
signal, from another place.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from trainmaster.agent.shell.datagrams import Datagrams
from trainmaster.contract.wire import Neighbour

PING_S = 0.25
UNANSWERED = 4  # pings in a row: then the neighbour is lost
_AT_FIRST = 4  # a round doesn't begin at the same moment everywhere

PING, PONG = "ping", "pong"


class Ring:
    """The ring. `changed` is called when the neighbour is lost, and when it answers again."""

    def __init__(self, datagrams: Datagrams, changed: Callable[[], None]) -> None:
        self._datagrams = datagrams
        self._changed = changed
        self._next: Neighbour | None = None
        self._nonce = ""
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lost(self) -> int | None:
        """Return the slot of the neighbour while it does not answer, else None."""
        return self._next.slot if self._next is not None and self._unanswered >= UNANSWERED else None

    @property
    def next(self) -> Neighbour | None:
        return self._next

    def begin(self, neighbour: Neighbour | None) -> None:
        """Note that a round begins, or that its neighbour has become known."""
        self._next = neighbour
        self._unanswered = -1 - _AT_FIRST
        if self._timer is None and neighbour is not None:
            self._tick()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def heard(self, kind: str, message: dict[str, Any], sender: Any) -> None:
        if kind == PING:
            self._datagrams.send(sender, {"kind": PONG, "nonce": message["nonce"]})
        elif kind == PONG and message["nonce"] == self._nonce:
            lost = self.lost is not None
            self._unanswered = -1  # the next tick makes it 0
            if lost:
                self._changed()

    def _tick(self) -> None:
        """Send a ping, and count it.

        Ticks are counted instead of seconds, so that an agent that was stopped itself does not blame its neighbour.
        """
        self._timer = asyncio.get_running_loop().call_later(PING_S, self._tick)
        if self._next is None:
            return
        self._unanswered += 1
        if self._unanswered == UNANSWERED:
            self._changed()
        self._nonce = secrets.token_hex(8)
        self._datagrams.send(self._next.address, {"kind": PING, "nonce": self._nonce})
