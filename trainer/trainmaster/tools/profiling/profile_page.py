"""One HTML page of recorded steps, which needs no network: a table of ranks, a timeline, the longest operators."""

from __future__ import annotations

import dataclasses
import heapq
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainmaster.tools.profiling.time_split import Span, Split, Stretch

_TEMPLATE = Path(__file__).parent / "page.html"

TIMELINES = 32
"""Number of ranks that have a timeline in the page: the slowest ones."""

MOST_BARS = 1200
"""Largest number of bars in a lane. A screen has no more columns."""

LONGEST_OPERATORS = 12


def page(
    first: int, last: int, round: int, splits: Sequence[Split], order: Sequence[int], timelines: list[dict[str, Any]]
) -> str:
    """Return the page.

    `order` has all ranks, first the one that the others wait for. `timelines` has those of the first ranks.
    """
    data = {
        "first": first,
        "last": last,
        "round": round,
        "splits": [{**dataclasses.asdict(split), "own": split.own} for split in splits],
        "order": list(order),
        "timelines": timelines,
    }
    # Names come from the user's code: none of them may end the script.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return _TEMPLATE.read_text(encoding="utf-8").replace("/*DATA*/null", text)


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
    names = heapq.nlargest(LONGEST_OPERATORS, times, key=lambda name: times[name])
    return [(name, counts[name], times[name]) for name in names]
