"""How often mere progress may be written to the API server. Intent never waits."""

from __future__ import annotations

from collections.abc import Hashable

from trainmaster_operator.runtime.clock import Clock


class ProgressBudget:
    """At most one write per job and interval, and at most `rate` a second over all jobs with bursts of `burst`."""

    def __init__(self, clock: Clock, interval_s: float = 0.5, rate: float = 20.0, burst: float = 40.0) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._filled_at = clock.monotonic()
        self._written_at: dict[Hashable, float] = {}

    def wait_s(self, key: Hashable) -> float:
        """Seconds until progress of this job may be written; 0: now."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        own = self._written_at.get(key, float("-inf")) + self._interval_s - now
        shared = 0.0 if self._tokens >= 1 else (1 - self._tokens) / self._rate
        return max(0.0, own, shared)

    def spend(self, key: Hashable, *, counts: bool) -> None:
        """A write of this job's status happens now; `counts` when it is one of mere progress."""
        self._written_at[key] = self._clock.monotonic()
        if counts:
            self._tokens -= 1

    def forget(self, key: Hashable) -> None:
        self._written_at.pop(key, None)
