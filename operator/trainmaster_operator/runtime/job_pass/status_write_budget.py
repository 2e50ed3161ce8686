"""How often progress alone may be written to the API server. Intents never wait."""

from __future__ import annotations

from collections.abc import Hashable

from trainmaster_operator.runtime.clock import Clock


class ProgressBudget:
    """At most one write per job and interval, and at most `rate` a second over all jobs with bursts of `burst`.

    A job that must wait gets its own time. If all waiting jobs tried at the time of the next free write, most of them
    would fail each time.
    """

    def __init__(self, clock: Clock, interval_s: float = 0.5, rate: float = 20.0, burst: float = 40.0) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._rate = rate
        self._burst_s = (burst - 1) / rate
        self._free_at = clock.monotonic() - self._burst_s  # The time of the next write that is not reserved yet.
        self._turns: dict[Hashable, float] = {}  # The times of jobs that have asked and not yet written.
        self._written_at: dict[Hashable, float] = {}

    def wait_s(self, key: Hashable) -> float:
        """Return the seconds until progress of this job may be written; 0 if it may be written now."""
        now = self._clock.monotonic()
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = max(self._free_at, now - self._burst_s)
            self._free_at = turn + 1 / self._rate
        own = self._written_at.get(key, float("-inf")) + self._interval_s
        return max(0.0, own - now, turn - now)

    def turn_s(self, key: Hashable) -> float:
        """Return the seconds until the time that is reserved for this job; 0 if none is."""
        return max(0.0, self._turns.get(key, 0.0) - self._clock.monotonic())

    def spend(self, key: Hashable, *, counts: bool) -> None:
        """Record a write of this job's status. `counts`: it writes progress alone. A reserved time that another
        write has made unnecessary is kept for the next progress."""
        self._written_at[key] = self._clock.monotonic()
        if counts:
            self._turns.pop(key, None)

    def forget(self, key: Hashable) -> None:
        self._written_at.pop(key, None)
        self._turns.pop(key, None)
