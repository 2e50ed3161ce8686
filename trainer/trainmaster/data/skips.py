"""Samples that a run leaves out, without moving those before them: pure integers, like the order itself."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from trainmaster.contract.ranges import merged


class Skips:
    """Positions of an order that are left out: which positions the samples take that a run has consumed.

    Made of ranges [first, end), which need be neither sorted nor disjoint. Without any, positions and samples consumed
    are the same numbers. A range never moves those before it, so a checkpoint made earlier keeps its meaning.
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self.ranges = merged(ranges)
        lengths = [0]
        for first, end in self.ranges:
            lengths.append(lengths[-1] + end - first)
        self._skipped = lengths  # before each range
        self._from = [first - skipped for (first, _), skipped in zip(self.ranges, lengths, strict=False)]

    def position(self, consumed: int) -> int:
        """Where the sample stands that comes after `consumed` others. O(log ranges)."""
        return consumed + self._skipped[bisect.bisect_right(self._from, consumed)]

    def pieces(self, consumed: int, count: int) -> list[tuple[int, int]]:
        """The next `count` samples after `consumed` as (position, count) of runs without a gap."""
        pieces = []
        while count:
            after = bisect.bisect_right(self._from, consumed)
            here = min(count, self._from[after] - consumed) if after < len(self._from) else count
            pieces.append((consumed + self._skipped[after], here))
            consumed, count = consumed + here, count - here
        return pieces

    def took(self, consumed: int, asked: Iterable[Sequence[int]]) -> bool:
        """Whether a run that has consumed so many took samples that are to be left out."""
        here = self.position(consumed)
        return any(self._holds(first, min(end, here)) < min(end, here) - first for first, end in asked)

    def _holds(self, first: int, end: int) -> int:
        """How many of the positions first..end are left out."""
        return sum(max(0, min(end, e) - max(first, f)) for f, e in self.ranges)

    def resumed(self, consumed: int, asked: Iterable[Sequence[int]]) -> Skips:
        """These skips, which a checkpoint at `consumed` was made with, and of others what lies ahead of it: what has
        been consumed can't be left out any more."""
        here = self.position(consumed)
        return Skips([*self.ranges, *((max(first, here), end) for first, end in asked if end > here)])
