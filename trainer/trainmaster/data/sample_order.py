"""The order of samples: a keyed bijection per epoch, which needs O(1) memory for data of any size.

Shuffling has two levels: shards (runs of neighbouring samples) come in a random order, and so do the samples within
each shard. Positions and samples are non-negative integers, in whole arrays.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.uint64]
ROUNDS = 6
WINDOW = 1024  # samples: an array of this size takes hardly longer than one of a few


class Permutation:
    """A keyed bijection of 0..size-1.

    It is a Feistel network over the next power of four, which is applied until the value is below `size` (Black and
    Rogaway, "Ciphers with arbitrary finite domains", 2002).
    """

    def __init__(self, size: int, key: str) -> None:
        assert size >= 1
        self.size = size
        self.half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        self.mask = np.uint64((1 << int(self.half)) - 1)
        digest = hashlib.shake_256(f"trainmaster/order/{key}".encode()).digest(8 * ROUNDS)
        self.keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def __call__(self, positions: Integers) -> Integers:
        return self._walk(positions, self._encrypt)

    def inverse(self, values: Integers) -> Integers:
        """Return the inverse of the bijection for each value."""
        return self._walk(values, self._decrypt)

    def _walk(self, values: Integers, step) -> Integers:  # type: ignore[no-untyped-def]
        values = step(values.astype(np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = step(values[outside])
        return values

    def _encrypt(self, values: Integers) -> Integers:
        left, right = values >> self.half, values & self.mask
        for key in self.keys:
            left, right = right, left ^ (_mix(right ^ key) & self.mask)
        return (left << self.half) | right

    def _decrypt(self, values: Integers) -> Integers:
        left, right = values >> self.half, values & self.mask
        for key in self.keys[::-1]:
            left, right = right ^ (_mix(left ^ key) & self.mask), left
        return (left << self.half) | right


def _mix(x: Integers) -> Integers:
    """Return the finalizer of SplitMix64 (Steele, Lea, Flood 2014) for each value."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@functools.lru_cache(maxsize=64)
def permutation(size: int, key: str) -> Permutation:
    """Return the permutation of 0..size-1 for this key."""
    return Permutation(size, key)


class Order:
    """Which sample is at which position of the endless sequence of epochs."""

    def __init__(self, samples: int, shard: int, seed: int) -> None:
        """An epoch has `samples` samples, in shards of `shard` samples; the last shard may be smaller."""
        self.samples, self.shard, self.seed = samples, shard, seed
        self.shards = -(-samples // shard)
        self._last: tuple[int, int, int] | None = None
        self._window: tuple[int, Integers] = 0, np.empty(0, np.uint64)

    def last(self, epoch: int) -> int:
        """Return the position, within its epoch, of the last sample, which may be shorter than the others."""
        return self._of_epoch(epoch)[1]

    def _of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (position of the last shard among the shards, position of the last sample)."""
        last = self._last  # read once: samples are read ahead in another thread, which may ask for another epoch
        if last is not None and last[0] == epoch:
            return last[1], last[2]
        shard = self.shards - 1
        size = self.samples - shard * self.shard
        place = int(permutation(self.shards, f"{self.seed}/{epoch}").inverse(np.array([shard], np.uint64))[0])
        inner = permutation(size, f"{self.seed}/{epoch}/{shard}")
        # All shards before it are full.
        position = place * self.shard + int(inner.inverse(np.array([size - 1], np.uint64))[0])
        self._last = epoch, place, position
        return place, position

    def __call__(self, start: int, count: int) -> Integers:
        """Return the samples at positions start..start+count. The samples after them are computed too, for the next
        call."""
        first, known = self._window
        if not first <= start <= start + count <= first + len(known):
            # Not far beyond a shard or an epoch: each one costs as much as a window.
            known = self._at(start, max(count, min(WINDOW, self.shard, self.samples)))
            first, self._window = start, (start, known)
        return known[start - first : start - first + count]

    def _at(self, start: int, count: int) -> Integers:
        parts = []
        while count:
            epoch, position = divmod(start, self.samples)
            here = min(count, self.samples - position)
            parts.append(self._within_epoch(epoch, np.arange(position, position + here, dtype=np.uint64)))
            start, count = start + here, count - here
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    def _within_epoch(self, epoch: int, positions: Integers) -> Integers:
        shards = permutation(self.shards, f"{self.seed}/{epoch}")
        size = np.uint64(self.shard)
        # All shards are full but the last, so what comes after it stands `missing` positions earlier.
        missing = np.uint64(self.shards * self.shard - self.samples)
        small = np.uint64(self._of_epoch(epoch)[0])
        positions = positions + missing * (positions >= (small + np.uint64(1)) * size - missing).astype(np.uint64)
        which, within = shards(positions // size), positions % size
        result = np.empty_like(positions)
        for shard in sorted(set(which.tolist())):  # np.unique would import numpy.ma: 60 ms
            members = which == shard
            first = shard * self.shard
            inner = permutation(min(self.shard, self.samples - first), f"{self.seed}/{epoch}/{shard}")
            result[members] = np.uint64(first) + inner(within[members])
        return result
