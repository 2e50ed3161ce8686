"""How much one sender may ask for. Pure: times come in. Keys must be proven identities, never what a stranger says."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

_FIRST_SWEEP = 64


@dataclass(frozen=True)
class Allowance:
    rate: float  # requests a second for ever...
    burst: float  # ...and so many at once after a rest


class Bucket:
    """A token bucket; it starts full."""

    __slots__ = ("_allowance", "_at", "_tokens")

    def __init__(self, allowance: Allowance, now: float) -> None:
        self._allowance = allowance
        self._tokens = allowance.burst
        self._at = now

    def take(self, now: float) -> float:
        """0: granted. Else: refused, and after so many seconds one would be granted."""
        self._refill(now)
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self._allowance.rate

    def full(self, now: float) -> bool:
        self._refill(now)
        return self._tokens >= self._allowance.burst

    def _refill(self, now: float) -> None:
        self._tokens = min(self._allowance.burst, self._tokens + max(0.0, now - self._at) * self._allowance.rate)
        self._at = now


class Buckets:
    """One bucket for each key that has asked lately. A full bucket is as good as none, so they are swept out whenever
    their number has doubled: the cost of a sweep is paid by the keys that came since."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._buckets: dict[Hashable, Bucket] = {}
        self._sweep_at = _FIRST_SWEEP

    def take(self, key: Hashable, now: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._sweep_at:
                self._buckets = {k: b for k, b in self._buckets.items() if not b.full(now)}
                self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._buckets))
            bucket = self._buckets[key] = Bucket(self._allowance, now)
        return bucket.take(now)

    def __len__(self) -> int:
        return len(self._buckets)
