"""metrics.jsonl as curves. Steps that ran again after a recovery appear twice there, with their round; the newest
one counts."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmaster_operator.planning.facts.counted_nouns import counted

Points = list[tuple[float, float]]

POINTS = 1200  # Maximum number of points of a curve in the report: more than it has pixels.
REPLACED = 64  # Maximum number of stretches of replaced steps that are kept for the picture.
DIFFERING = 20
MOST_STEPS = 2**63  # A script may report any number as its step.


@dataclass
class Metrics:
    """The metrics of a run. `steps` ascend. `replaced`: stretches of losses that a later round replaced. `rounds`:
    (round, its first step). `ran_tokens`, `ran_seconds`: of all steps in the order in which they ran, replaced ones
    included. `starts`: for each of `rounds`, the number of steps that ran before it. `evaluations`: (step, loss) on
    data that is not used for training, ascending.

    `repeated`: number of steps that ran again. `differing`: the first few of those whose loss was not identical bit for
    bit, as (step, before, after). `malformed`: number of lines that could not be read (a killed writer leaves at most
    half a line).
    """

    steps: array[int] = field(default_factory=lambda: array("q"))
    losses: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    utilizations: array[float] = field(default_factory=lambda: array("d"))
    replaced: list[Points] = field(default_factory=list)
    evaluations: Points = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ran_tokens: array[float] = field(default_factory=lambda: array("d"))
    ran_seconds: array[float] = field(default_factory=lambda: array("d"))
    repeated: int = 0
    differences: int = 0
    differing: list[tuple[int, float, float]] = field(default_factory=list)
    malformed: int = 0

    @property
    def has_losses(self) -> bool:
        """True if any step has a loss; a script may report none."""
        return any(not math.isnan(loss) for loss in self.losses)

    def loss_curve(self) -> Points:
        return thinned(zip(self.steps, self.losses, strict=True))

    def mean_throughput(self) -> float:
        """Return the tokens per second over all steps that count; 0 if unknown."""
        spent = math.fsum(s for s in self.seconds if math.isfinite(s))
        return math.fsum(self.tokens) / spent if spent > 0 else 0.0

    def mean_utilization(self) -> float:
        """Return the MFU over all steps that count; 0 if unknown."""
        known = [(u, s) for u, s in zip(self.utilizations, self.seconds, strict=True) if math.isfinite(u * s)]
        spent = math.fsum(s for _, s in known)
        return math.fsum(u * s for u, s in known) / spent if spent > 0 else 0.0


def read(path: Path) -> Metrics:
    """Return the metrics in a file. They are empty if there is no such file."""
    metrics = Metrics()
    before: dict[int, float] = {}  # The losses of the steps that the last recovery discarded.
    current = -1
    if not path.exists():
        return metrics
    with path.open("rb") as file:
        for line in file:
            parsed = _parsed(line)
            if parsed is None:
                metrics.malformed += 1
                continue
            step, round, loss, tokens, seconds, utilization, evaluated = parsed
            if round < current:
                continue  # A late line of ranks that are fenced off.
            if evaluated is not None:  # An evaluation has a line of its own, without the numbers of a step.
                while metrics.evaluations and metrics.evaluations[-1][0] >= step:
                    metrics.evaluations.pop()
                metrics.evaluations.append((float(step), evaluated))
                continue
            if round > current:
                current = round
                metrics.rounds.append((round, step))
                metrics.starts.append(len(metrics.ran_seconds))
            if metrics.steps and step <= metrics.steps[-1]:
                before.update(_cut(metrics, step))
            if step in before:
                _compare(metrics, step, before.pop(step), loss)
            metrics.steps.append(step)
            metrics.losses.append(loss)
            metrics.tokens.append(tokens)
            metrics.seconds.append(seconds)
            metrics.utilizations.append(utilization)
            metrics.ran_tokens.append(tokens)
            metrics.ran_seconds.append(seconds)
    return metrics


def continuity(metrics: Metrics) -> str:
    """Return a sentence about the steps that ran twice."""
    if not metrics.repeated:
        return "No step had to be run twice."
    ran = f"{counted(metrics.repeated, 'step')} ran twice"
    if not metrics.has_losses:
        return f"{ran}; none reported a loss, so nothing can be compared."
    if not metrics.differences:
        each = "it had" if metrics.repeated == 1 else "each had"
        return f"{ran}; {each} bit for bit the same loss both times."
    step, before, after = metrics.differing[0]
    return (
        f"{ran}; {metrics.differences} had a different loss the second time, first step {step}: {before!r}, then "
        f"{after!r}."
    )


def _parsed(line: bytes) -> tuple[int, int, float, float, float, float, float | None] | None:
    """Return (step, round, loss, tokens, seconds, MFU, the loss of an evaluation if the line has one); None for an
    invalid line."""
    try:
        value: dict[str, Any] = json.loads(line)
        loss, tokens, seconds, mfu = (_number(value.get(key)) for key in ("loss", "tokens", "seconds", "mfu"))
        evaluated = _number(value["evaluation_loss"]) if "evaluation_loss" in value else None
        step, round = int(value["step"]), int(value.get("round", 0))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return (step, round, loss, tokens or 0.0, seconds, mfu, evaluated) if 0 <= step < MOST_STEPS else None


def _number(value: Any) -> float:
    """Return a number. NaN is text in JSON, and a missing number is NaN too."""
    return math.nan if value is None else float(value)


def _cut(metrics: Metrics, step: int) -> dict[int, float]:
    """Remove everything from `step` on from the curves, and return the removed losses by step."""
    at = len(metrics.steps)
    while at and metrics.steps[at - 1] >= step:
        at -= 1
    steps, losses = metrics.steps[at:], metrics.losses[at:]
    if len(metrics.replaced) < REPLACED:
        metrics.replaced.append(thinned(zip(steps, losses, strict=True), 200))
    for column in (metrics.steps, metrics.losses, metrics.tokens, metrics.seconds, metrics.utilizations):
        del column[at:]
    return dict(zip(steps, losses, strict=True))


def _compare(metrics: Metrics, step: int, before: float, after: float) -> None:
    metrics.repeated += 1
    if before != after and not (math.isnan(before) and math.isnan(after)):
        metrics.differences += 1
        if len(metrics.differing) < DIFFERING:
            metrics.differing.append((step, before, after))


def thinned(curve: Iterable[tuple[float, float]], limit: int = POINTS) -> Points:
    """Return at most `limit` points that keep every peak: the lowest and the highest of each of limit/2 stretches."""
    points = [(float(x), float(y)) for x, y in curve if math.isfinite(y)]
    if len(points) <= limit:
        return points
    kept: Points = []
    stretches = limit // 2
    for i in range(stretches):
        stretch = points[i * len(points) // stretches : (i + 1) * len(points) // stretches]
        kept += sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    return kept
