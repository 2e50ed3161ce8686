"""What can go wrong between a client and its API server: kinds of faults, their rates, and where they are scripted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Literal

Stream = Literal["write", "list", "event"]


class OperatorCrash(BaseException):
    """The process dies here. No `except Exception` may catch it."""


class Fault(Enum):
    """A kind of fault, and what it does to a write, a list or an event."""

    FAIL = "fail"  # write or list: Unavailable, without effect
    THROTTLE = "throttle"  # write or list: TooManyRequests, without effect
    LOSE = "lose"  # write: takes effect, but the reply is lost (Unavailable)
    LATE = "late"  # write: Unavailable at once, and takes effect later, perhaps after the client's next calls or death
    CONFLICT = "conflict"  # write: Conflict, without effect
    STALE = "stale"  # list: an older state
    DROP = "drop"  # event: never arrives, but the next watch finds its history gone
    DELAY = "delay"  # event: comes late, and so does what follows
    REORDER = "reorder"  # event: arrives after the next one, if that is of another object
    DUPLICATE = "duplicate"  # event: arrives twice
    DISCONNECT = "disconnect"  # event: the stream breaks instead (Unavailable); the event comes after a new watch
    END = "end"  # event: the server ends the stream instead, orderly
    EXPIRE = "expire"  # event: 410 Gone instead


@dataclass(frozen=True)
class Scripted:
    """`fault` strikes at the `number`-th write, list or event of this client, counted from 1."""

    stream: Stream
    number: int
    fault: Fault


@dataclass(frozen=True)
class Rates:
    """Probability of each fault, for each write, list or event. One write or event meets one fault at most."""

    fail: float = 0.0
    throttle: float = 0.0
    lose: float = 0.0
    late: float = 0.0
    conflict: float = 0.0
    stale: float = 0.0
    drop: float = 0.0
    delay: float = 0.0
    reorder: float = 0.0
    duplicate: float = 0.0
    disconnect: float = 0.0
    end: float = 0.0
    expire: float = 0.0

    @cached_property
    def of_writes(self) -> list[tuple[Fault, float]]:
        return self._of(Fault.FAIL, Fault.THROTTLE, Fault.LOSE, Fault.LATE, Fault.CONFLICT)

    @cached_property
    def of_lists(self) -> list[tuple[Fault, float]]:
        return self._of(Fault.FAIL, Fault.THROTTLE, Fault.STALE)

    @cached_property
    def of_events(self) -> list[tuple[Fault, float]]:
        missed = (Fault.DROP, Fault.DELAY, Fault.REORDER, Fault.DUPLICATE)
        return self._of(*missed, Fault.DISCONNECT, Fault.END, Fault.EXPIRE)

    def _of(self, *faults: Fault) -> list[tuple[Fault, float]]:
        """The rates of those faults that happen at all."""
        rates = ((fault, getattr(self, fault.value)) for fault in faults)
        return [(fault, rate) for fault, rate in rates if rate > 0]


@dataclass(frozen=True)
class CrashPoint:
    """The process dies right before, or right after, its `number`-th write, counted from 1, takes effect."""

    number: int
    when: Literal["before", "after"]
