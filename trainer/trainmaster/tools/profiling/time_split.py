"""Where the time of recorded steps went: computation, communication that was not hidden, and the rest.

It imports no torch. Times are microseconds of one rank's clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Something that one thread or device did. Spans of a kind may overlap, because threads run in parallel.

    `own` is its time without the spans within it.
    """

    name: str
    start: float
    end: float
    own: float


Stretch = tuple[float, float]


@dataclass(frozen=True)
class Split:
    """The division of one rank's recorded steps, in microseconds.

    compute: something computes; hidden: something is sent at the same time. communication: something is sent and
    nothing computes, which is mostly waiting. other: neither, which is Python, data, or a wait for the host.
    """

    steps: int
    wall: float
    compute: float
    hidden: float
    communication: float
    other: float

    @property
    def own(self) -> float:
        """Return the time that this rank took for itself. The others wait for the rank with the largest value."""
        return self.wall - self.communication


def union(spans: Iterable[Span | Stretch], window: Stretch) -> list[Stretch]:
    """Return the stretches of `window` in which at least one of the spans is under way, in order."""
    pairs = sorted((s.start, s.end) if isinstance(s, Span) else s for s in spans)
    merged: list[Stretch] = []
    for start, end in pairs:
        start, end = max(start, window[0]), min(end, window[1])
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def overlap(one: Sequence[Stretch], other: Sequence[Stretch]) -> float:
    """Return how long both are under way. Each is in order and without overlaps of its own, as `union` returns it."""
    total, i, k = 0.0, 0, 0
    while i < len(one) and k < len(other):
        total += max(0.0, min(one[i][1], other[k][1]) - max(one[i][0], other[k][0]))
        if one[i][1] < other[k][1]:
            i += 1
        else:
            k += 1
    return total


def split(steps: int, window: Stretch, compute: Sequence[Span], communication: Sequence[Span]) -> Split:
    computing, sending = union(compute, window), union(communication, window)
    computed, sent = sum(e - s for s, e in computing), sum(e - s for s, e in sending)
    hidden = overlap(computing, sending)
    wall = window[1] - window[0]
    return Split(steps, wall, computed, hidden, sent - hidden, wall - computed - sent + hidden)


def in_words(splits: list[Split]) -> str:
    """Return one sentence about all ranks."""
    wall = sum(s.wall for s in splits)
    shares = {name: sum(getattr(s, name) for s in splits) / wall for name in ("compute", "communication", "other")}
    told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    if len(splits) == 1:
        return told
    slowest = max(range(len(splits)), key=lambda rank: splits[rank].own)
    ratio = splits[slowest].own / statistics.median(s.own for s in splits)
    return f"{told}; the others wait for rank {slowest}, whose own work takes {ratio:.2f} times the median"
