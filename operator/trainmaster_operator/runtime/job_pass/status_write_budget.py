"""How often mere progress may be written to the API server. Intent never waits."""

from __future__ import annotations

from collections.abc import Hashable

from trainmaster_operator.runtime.clock import Clock


class ProgressBudget:
    """At most one write per job and interval, and at most `rate` a second over all jobs with bursts of `burst`.

    A job that has to wait is given a turn of its own. Were all told to come when the next write is free, most would
    come in vain, each time.
    """

    def __init__(self, clock: Clock, interval_s: float = 0.5, rate: float = 20.0, burst: float = 40.0) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._rate = rate
        self._burst_s = (burst - 1) / rate
        self._free_at = clock.monotonic() - self._burst_s  # when a write that nobody has asked for yet may happen
        self._turns: dict[Hashable, float] = {}  # of jobs that have asked and not written yet
        self._written_at: dict[Hashable, float] = {}

    def wait_s(self, key: Hashable) -> float:
        """Seconds until progress of this job may be written; 0: now."""
        now = self._clock.monotonic()
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = max(self._free_at, now - self._burst_s)
            self._free_at = turn + 1 / self._rate
        own = self._written_at.get(key, float("-inf")) + self._interval_s
        return max(0.0, own - now, turn - now)

    def turn_s(self, key: Hashable) -> float:
        """Seconds until the turn that this job waits for; 0 if it doesn't wait for one."""
        return max(0.0, self._turns.get(key, 0.0) - self._clock.monotonic())

    def spend(self, key: Hashable, *, counts: bool) -> None:
        """A write of this job's status happens now; `counts` when it is one of mere progress. A turn that another
        write has made needless is kept for the next progress."""
        self._written_at[key] = self._clock.monotonic()
        if counts:
            self._turns.pop(key, None)

    def forget(self, key: Hashable) -> None:
        self._written_at.pop(key, None)
        self._turns.pop(key, None)
