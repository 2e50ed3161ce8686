"""How suspect a node is: the reasons that all jobs gave, and the arithmetic over them.

The weight of a reason depends on what it says about the node, and halves with each half-life. A crash is mostly the
job's own fault: the first crash of a job on a node weighs nothing, and the crashes of one job alone never exclude a
node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainmaster.contract.wire import Cause

HALF_LIFE_S = 6 * 3600.0

WEIGHTS: Mapping[Cause, float] = {
    Cause.HARDWARE_FAULT: 1.0,
    Cause.NODE_LOST: 0.6,
    Cause.AGENT_LOST: 0.4,
    Cause.REFUSED: 0.4,  # The node rejected a pod because a device is broken.
    Cause.STRAGGLER: 0.4,
    Cause.HANG: 0.2,
    Cause.CRASH: 0.2,
}
_BY_NAME = {cause.value: value for cause, value in WEIGHTS.items()}
EXCLUDED_FROM = 0.95  # A score. It is below 1 because the newest of several reasons has already decayed a little.
CRASHES_WEIGH = 0.4  # Largest weight of the crashes of one job on one node.
FORGOTTEN_BELOW = 0.02
MOST = 32  # Maximum number of names in a status.


@dataclass(frozen=True)
class Mark:
    """One reason to suspect a node. `id` identifies the reason, so that none counts twice. `at`: seconds since 1970."""

    id: str
    job: str  # The job that gave the reason.
    cause: str
    at: float


@dataclass(frozen=True)
class Suspicion:
    """The reasons of all jobs, by node. `nodes`: number of all nodes that are known."""

    marks: Mapping[str, Sequence[Mark]] = field(default_factory=dict)
    nodes: int = 0
    half_life_s: float = HALF_LIFE_S


def weight(mark: Mark, now: float, half_life_s: float) -> float:
    """Return the weight of a reason at time `now`, after its decay."""
    decayed: float = _BY_NAME.get(mark.cause, 0.0) * 0.5 ** (max(0.0, now - mark.at) / half_life_s)
    return decayed


def score(marks: Iterable[Mark], now: float, half_life_s: float = HALF_LIFE_S) -> float:
    """Return the sum of the weights of a node's reasons. A higher score means a more suspect node."""
    total = 0.0
    crashes: dict[str, list[float]] = {}
    for mark in marks:
        one = weight(mark, now, half_life_s)
        if mark.cause == Cause.CRASH.value:
            crashes.setdefault(mark.job, []).append(one)
        else:
            total += one
    for each in crashes.values():
        total += min(CRASHES_WEIGH, sum(sorted(each, reverse=True)[:-1]))  # The first crash does not count.
    return total
