"""Where the time of a run went, from the lines that its rank 0 wrote and the faults that struck it.

Decides only. The parts add up to the wall time:

- start: until the first step is completed; end: from the last one on;
- useful: steps that were completed for the first time; repeated: those that had been completed before;
- saving: what the script told of the time for which a save stopped its loop;
- standstill: from the last step of one attempt to the first one of the next, under the name of the fault that struck
  before it. The step that was cut short is in it, and the first one afterwards.

Goodput is the useful part of the time from the first to the last step.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

OTHER = "no fault of ours"
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom."""


@dataclass(frozen=True)
class Line:
    at_s: float  # of the machine's monotonic clock
    attempt: int
    what: str  # step, save or end
    step: int
    value: str  # the loss as exact text, the seconds of a save, or the digest of the end


@dataclass(frozen=True)
class Strike:
    at_s: float
    kind: str


@dataclass(frozen=True)
class Account:
    """Seconds and counts of one run."""

    wall_s: float
    start_s: float
    useful_s: float
    repeated_s: float
    saving_s: float
    standstills: tuple[tuple[str, float], ...]  # (fault, seconds), one for each
    end_s: float
    useful_steps: int
    repeated_steps: int

    @property
    def goodput(self) -> float:
        # The sum of the parts, not a difference of times: rounded, that may be less than one of them.
        others = self.repeated_s + self.saving_s + sum(seconds for _, seconds in self.standstills)
        between = self.useful_s + others
        return self.useful_s / between if between > 0 else 1.0

    def standstill_s(self) -> dict[str, float]:
        """Seconds by fault."""
        sums: dict[str, float] = {}
        for kind, seconds in self.standstills:
            sums[kind] = sums.get(kind, 0.0) + seconds
        return sums


def parse(text: str) -> list[Line]:
    """Return the complete lines of a step log."""
    lines = []
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            at_ns, attempt, what, step, value = line.split()
            lines.append(Line(int(at_ns) / 1e9, int(attempt), what, int(step), value))
    return lines


def account(began_s: float, ended_s: float, lines: Iterable[Line], strikes: Sequence[Strike]) -> Account:
    """Split the time of a run. Raises ValueError if it completed no step."""
    ordered = sorted(lines, key=lambda line: line.at_s)
    steps = [line for line in ordered if line.what == "step"]
    if not steps:
        raise ValueError("the run completed no step")
    useful = repeated = saving = 0.0
    standstills = []
    blamed = 0  # strikes; each of them explains one standstill
    highest = steps[0].step
    for before, after, span, saved in _pairs(ordered):
        if after.attempt != before.attempt:
            struck = [strike.kind for strike in strikes[blamed:] if strike.at_s <= after.at_s]
            blamed += len(struck)
            standstills.append((struck[-1] if struck else OTHER, span))
        elif after.step > highest:
            saving, useful = saving + saved, useful + span - saved
        else:
            saving, repeated = saving + saved, repeated + span - saved
        highest = max(highest, after.step)
    distinct = len({line.step for line in steps})
    start, end = steps[0].at_s - began_s, ended_s - steps[-1].at_s
    return Account(
        ended_s - began_s, start, useful, repeated, saving, tuple(standstills), end, distinct, len(steps) - distinct
    )


def _pairs(lines: Iterable[Line]) -> Iterator[tuple[Line, Line, float, float]]:
    """Yield each two steps that follow each other, the seconds between them, and those of a save in between."""
    ordered = sorted(lines, key=lambda line: line.at_s)
    saves = {(line.attempt, line.step): float(line.value) for line in ordered if line.what == "save"}
    for before, after in itertools.pairwise(line for line in ordered if line.what == "step"):
        span = after.at_s - before.at_s
        yield before, after, span, min(span, saves.get((before.attempt, before.step), 0.0))


def step_seconds(lines: Iterable[Line]) -> float:
    """Return the median time of a step, without that of a save before it. Raises ValueError without any."""
    spans = [span - saved for before, after, span, saved in _pairs(lines) if before.attempt == after.attempt]
    if not spans:
        raise ValueError("no two steps of an attempt follow each other")
    return statistics.median(spans)


def save_seconds(lines: Iterable[Line]) -> float:
    """Return the median time that a save took. Raises ValueError without any."""
    saves = [float(line.value) for line in lines if line.what == "save"]
    if not saves:
        raise ValueError("the run saved nothing")
    return statistics.median(saves)


def losses_digest(lines: Iterable[Line]) -> str:
    """Return a digest of the exact losses of all steps. Raises ValueError if a step that was repeated had another."""
    losses: dict[int, str] = {}
    for line in lines:
        if line.what == "step" and losses.setdefault(line.step, line.value) != line.value:
            raise ValueError(f"step {line.step} had the loss {losses[line.step]} and, repeated, {line.value}")
    text = "".join(f"{step} {losses[step]}\n" for step in sorted(losses))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the ends of its two-sided 95 % interval by Student's t.

    Of fewer than two samples the ends are not a number; of more than ten the quantile is that of ten.
    """
    mean = statistics.mean(samples)
    if len(samples) < 2:
        return mean, math.nan, math.nan
    half = T975[min(len(samples) - 1, len(T975)) - 1] * statistics.stdev(samples) / math.sqrt(len(samples))
    return mean, mean - half, mean + half


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios of pairs, and the ends of its 95 % interval."""
    mean, low, high = interval([math.log(a / b) for a, b in zip(above, below, strict=True)])
    return math.exp(mean), math.exp(low), math.exp(high)
