"""Where the time of recorded steps went: computing, communication that nothing hid, and the rest.

Torch-free. Times are microseconds of one rank's clock.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_BARS = 1200
"""Of a lane. A screen has no more columns."""
_TOP = 12


@dataclass(frozen=True)
class Span:
    """Something that one thread or device did. Spans of a kind may overlap: threads work side by side.

    own: what it took without the spans within it.
    """

    name: str
    start: float
    end: float
    own: float


Stretch = tuple[float, float]


@dataclass(frozen=True)
class Split:
    """Of one rank's recorded steps, in microseconds.

    compute: anything computes, hidden: something is sent meanwhile, too. communication: something is sent and nothing
    computes, so mostly it is waiting. other: neither, which is Python, data, or a wait for the host.
    """

    steps: int
    wall: float
    compute: float
    hidden: float
    communication: float
    other: float

    @property
    def own(self) -> float:
        """What this rank took for itself: whoever took longest is the one that the others wait for."""
        return self.wall - self.communication


def union(spans: Iterable[Span | Stretch], window: Stretch) -> list[Stretch]:
    """The stretches of `window` in which at least one of the spans is under way, in order."""
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
    """How long both are under way. Each in order and without overlaps of its own, as `union` returns."""
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
    """(start from `origin`, length, name) of what a lane of a timeline shows.

    Spans that overlap are one bar, named after the longest. So are those that begin in the same column of the screen,
    where there are more than it has.
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
    """(name, how often, microseconds without what they call) of what took longest."""
    counts: dict[str, int] = defaultdict(int)
    times: dict[str, float] = defaultdict(float)
    for span in spans:
        counts[span.name] += 1
        times[span.name] += span.own
    names = heapq.nlargest(_TOP, times, key=lambda name: times[name])
    return [(name, counts[name], times[name]) for name in names]
