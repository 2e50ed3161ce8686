"""The throughput of a run over time, with the pauses in which its ranks restarted."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainmaster_operator.cli.report.metrics_file import Metrics, Points, thinned
from trainmaster_operator.planning.facts.job_state import Recovery
from trainmaster_operator.planning.facts.timestamps import seconds_of

WINDOWS = 150
"""Number of parts of the run for each of which the curve has one value, because single steps vary."""


@dataclass(frozen=True)
class Pause:
    """The time before the first step of a round, in seconds since the first step of the run began."""

    round: int
    begin: float
    end: float  # Equal to `begin` if the length is unknown.


@dataclass
class Throughput:
    """`curve`: (seconds since the first step of the run began, tokens or steps per second); 0 in pauses."""

    curve: Points = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)


def over_time(metrics: Metrics, recoveries: Sequence[Recovery]) -> Throughput:
    """Return the steps of a run one after the other as they ran, with the recoveries between them.

    metrics.jsonl has the seconds of each step and no time of day, so a pause without a recovery in the status has no
    length.
    """
    found = Throughput()
    window_s = math.fsum(filter(math.isfinite, metrics.ran_seconds)) / WINDOWS
    if window_s <= 0:
        return found
    at, before = 0.0, 0
    ends = [*metrics.starts[1:], len(metrics.ran_seconds)]
    amounts = metrics.ran_tokens if any(metrics.ran_tokens) else array("d", [1.0]) * len(metrics.ran_seconds)
    for (number, _), start, end in zip(metrics.rounds, metrics.starts, ends, strict=True):
        if found.curve:
            # A recovery lasts until the first step of its round is over.
            first_s = metrics.ran_seconds[start] if math.isfinite(metrics.ran_seconds[start]) else 0.0
            pause = Pause(number, at, at + max(0.0, _recovery_s(recoveries, before, number) - first_s))
            found.pauses.append(pause)
            found.curve += [(pause.begin, 0.0), (pause.end, 0.0)]
            at = pause.end
        curve = _averaged(amounts[start:end], metrics.ran_seconds[start:end], window_s, at)
        found.curve += curve
        at, before = curve[-1][0] if curve else at, number
    found.curve = thinned(found.curve)
    return found


def _recovery_s(recoveries: Sequence[Recovery], after: int, round: int) -> float:
    """Return the seconds until `round` trained, including the rounds after `after` that completed no step; 0 if
    unknown."""
    closed = [r for r in recoveries if after < r.round <= round and r.totalSeconds is not None]
    if not closed:
        return 0.0
    begins = [seconds_of(r.startedAt) for r in closed if r.startedAt]
    spans = [seconds_of(r.startedAt) - min(begins) if r.startedAt else 0.0 for r in closed]
    return max(span + (r.totalSeconds or 0.0) for span, r in zip(spans, closed, strict=True))


def _averaged(amounts: Sequence[float], seconds: Sequence[float], window_s: float, begin: float) -> Points:
    """Return means over windows of time, each at the end of its window, with a first point at `begin`."""
    windows: list[tuple[float, float]] = []  # (amount, seconds)
    amount = spent = 0.0
    for more, took in zip(amounts, seconds, strict=True):
        if math.isfinite(took):
            amount, spent = amount + more, spent + took
        if spent >= window_s:
            windows.append((amount, spent))
            amount = spent = 0.0
    if spent > 0:
        # The few steps at the end would differ from the other means, so they belong to the window before them.
        before = windows.pop() if windows else (0.0, 0.0)
        windows.append((before[0] + amount, before[1] + spent))
    points = [(begin, windows[0][0] / windows[0][1])] if windows else []
    for amount, spent in windows:
        points.append((points[-1][0] + spent, amount / spent))
    return points
