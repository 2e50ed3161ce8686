"""How many requests one sender may make. The functions are pure: times are arguments. Keys must be proven
identities, never claims of a stranger."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

_FIRST_SWEEP = 64


@dataclass(frozen=True)
class Allowance:
    """A number of requests."""

    rate: float  # Requests a second on average.
    burst: float  # Maximum number of requests at once after a pause.


REQUESTS_OF_A_POD = Allowance(rate=50, burst=200)  # Its agent sends a few requests a second.


class Bucket:
    """A token bucket; it starts full."""

    __slots__ = ("_allowance", "_at", "_tokens")

    def __init__(self, allowance: Allowance, now: float) -> None:
        self._allowance = allowance
        self._tokens = allowance.burst
        self._at = now

    def take(self, now: float) -> float:
        """Take one token. Return 0 if it is granted, else the seconds after which one would be granted."""
        self._refill(now)
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self._allowance.rate

    def full(self, now: float) -> bool:
        """Return whether all tokens are there."""
        self._refill(now)
        return self._tokens >= self._allowance.burst

    def _refill(self, now: float) -> None:
        self._tokens = min(self._allowance.burst, self._tokens + max(0.0, now - self._at) * self._allowance.rate)
        self._at = now


class Buckets:
    """One bucket for each key that has asked recently. A full bucket is the same as none, so full ones are removed
    whenever the number of buckets has doubled; the keys added since then pay for that."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._buckets: dict[Hashable, Bucket] = {}
        self._sweep_at = _FIRST_SWEEP

    def take(self, key: Hashable, now: float) -> float:
        """Take one token of the key. Return 0 if it is granted, else the seconds after which one would be granted."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._sweep_at:
                self._buckets = {k: b for k, b in self._buckets.items() if not b.full(now)}
                self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._buckets))
            bucket = self._buckets[key] = Bucket(self._allowance, now)
        return bucket.take(now)

    def __len__(self) -> int:
        return len(self._buckets)
