"""Each agent asks the next one of its round whether it lives, four times a second.

The operator hears each agent only now and then, and from one place. That a neighbour doesn't answer either is a second
signal, from elsewhere.
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
    """`changed` is called when the neighbour is lost, and when it is back."""

    def __init__(self, datagrams: Datagrams, changed: Callable[[], None]) -> None:
        self._datagrams = datagrams
        self._changed = changed
        self._next: Neighbour | None = None
        self._nonce = ""
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lost(self) -> int | None:
        """The slot of the neighbour, while it doesn't answer."""
        return self._next.slot if self._next is not None and self._unanswered >= UNANSWERED else None

    @property
    def next(self) -> Neighbour | None:
        return self._next

    def begin(self, neighbour: Neighbour | None) -> None:
        """A round begins, or its neighbour has become known."""
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
        """Ticks are counted, not seconds: an agent that stood still itself has no reason to blame anybody."""
        self._timer = asyncio.get_running_loop().call_later(PING_S, self._tick)
        if self._next is None:
            return
        self._unanswered += 1
        if self._unanswered == UNANSWERED:
            self._changed()
        self._nonce = secrets.token_hex(8)
        self._datagrams.send(self._next.address, {"kind": PING, "nonce": self._nonce})
