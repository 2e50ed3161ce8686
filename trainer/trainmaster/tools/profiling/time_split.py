"""Where the time of recorded steps went: computation, communication that was not hidden, and the rest.

It imports no torch. Times are microseconds of one rank's clock.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_BARS = 1200
"""Largest number of bars in a lane. A screen has no more columns."""
_TOP = 12


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


def bars(spans: Sequence[Span], window: Stretch, origin: float) -> list[tuple[int, int, str]]:
    """Return (start from `origin`, length, name) of the bars in a lane of a timeline.

    Spans that overlap are one bar, named after the longest. If there are more spans than columns of the screen, those
    that begin in the same column are one bar, too.
    """
    inside = sorted((s for s in spans if s.end > window[0] and s.start < window[1]), key=lambda span: span.start)
    column = (window[1] - window[0]) / MOST_BARS if len(inside) > MOST_BARS else 0.0
    lane: list[tuple[float, float, float, str]] = []  # start, end, the longest span's length and name
    for span in inside:
        length = span.end - span.start
        if lane and (span.start < lane[-1][1] or span.start - lane[-1][0] < column):
            start, end, longest, name = lane[-1]
            lane[-1] = start, max(end, span.end), max(longest, length), span.name if length > longest else name
        else:
            lane.append((span.start, span.end, length, span.name))
    return [(round(start - origin), max(1, round(end - start)), name) for start, end, _, name in lane]


def top(spans: Sequence[Span]) -> list[tuple[str, int, float]]:
    """Return (name, count, microseconds without what it calls) of the operators that took longest."""
    counts: dict[str, int] = defaultdict(int)
    times: dict[str, float] = defaultdict(float)
    for span in spans:
        counts[span.name] += 1
        times[span.name] += span.own
    names = heapq.nlargest(_TOP, times, key=lambda name: times[name])
    return [(name, counts[name], times[name]) for name in names]
