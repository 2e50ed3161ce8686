"""Samples that a run leaves out. Samples before them keep their positions. Only integers, as in `sample_order`."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from trainmaster.contract.sample_ranges import merged


class Skips:
    """The positions of an order that are left out.

    They are ranges [first, end), which need be neither sorted nor disjoint. Without any, a position is the number of
    samples consumed before it. A range never changes the positions before it, so an older checkpoint keeps its meaning.
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self.ranges = merged(ranges)
        lengths = [0]
        for first, end in self.ranges:
            lengths.append(lengths[-1] + end - first)
        self._skipped = lengths  # before each range
        self._from = [first - skipped for (first, _), skipped in zip(self.ranges, lengths, strict=False)]

    def position(self, consumed: int) -> int:
        """Return the position of the next sample after `consumed` samples, in O(log ranges)."""
        return consumed + self._skipped[bisect.bisect_right(self._from, consumed)]

    def pieces(self, consumed: int, count: int) -> list[tuple[int, int]]:
        """Return the next `count` samples after `consumed` as (position, count) of runs without a gap."""
        pieces = []
        while count:
            after = bisect.bisect_right(self._from, consumed)
            here = min(count, self._from[after] - consumed) if after < len(self._from) else count
            pieces.append((consumed + self._skipped[after], here))
            consumed, count = consumed + here, count - here
        return pieces

    def took(self, consumed: int, asked: Iterable[Sequence[int]]) -> bool:
        """Return True if the first `consumed` samples contain a sample that is to be left out."""
        here = self.position(consumed)
        return any(self._holds(first, min(end, here)) < min(end, here) - first for first, end in asked)

    def _holds(self, first: int, end: int) -> int:
        """Return how many of the positions [first, end) are left out."""
        return sum(max(0, min(end, e) - max(first, f)) for f, e in self.ranges)

    def resumed(self, consumed: int, asked: Iterable[Sequence[int]]) -> Skips:
        """Return these skips, of a checkpoint at `consumed`, and the parts of `asked` that come later.

        Samples that have been consumed cannot be left out any more.
        """
        here = self.position(consumed)
        return Skips([*self.ranges, *((max(first, here), end) for first, end in asked if end > here)])
