"""Why a node is suspect, and how much. Pure arithmetic over reasons that jobs gave.

A reason weighs by what it says about the node, and half as much each time some hours have passed. A crash is mostly the
job's own fault: the first of a job on a node weighs nothing, and one job's crashes alone never exclude a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainmaster.contract.wire import Cause

WEIGHTS: Mapping[Cause, float] = {
    Cause.HARDWARE_FAULT: 1.0,
    Cause.NODE_LOST: 0.6,
    Cause.AGENT_LOST: 0.4,
    Cause.REFUSED: 0.4,  # a pod that the node turned away, since a device is broken
    Cause.STRAGGLER: 0.4,
    Cause.HANG: 0.2,
    Cause.CRASH: 0.2,
}
EXCLUDED_FROM = 0.95  # a score; below 1, since the newest of several reasons has decayed a little
CRASHES_WEIGH = 0.4  # of one job on one node, at most
HALF_LIFE_S = 6 * 3600.0
FORGOTTEN_BELOW = 0.02
SHARE = 0.2  # of the nodes that are known, at most; but one, where there are two
MOST = 32  # names in a status


@dataclass(frozen=True)
class Mark:
    """One reason to suspect a node. `id` tells reasons apart, so that none counts twice; `at`: seconds since 1970."""

    id: str
    job: str  # of which it is known
    cause: str
    at: float


@dataclass(frozen=True)
class Suspicion:
    """What all jobs together know. `nodes`: how many are known at all."""

    marks: Mapping[str, Sequence[Mark]] = field(default_factory=dict)
    nodes: int = 0
    half_life_s: float = HALF_LIFE_S
    share: float = SHARE


def weight(mark: Mark, now: float, half_life_s: float) -> float:
    known = {cause.value: value for cause, value in WEIGHTS.items()}.get(mark.cause, 0.0)
    decayed: float = known * 0.5 ** (max(0.0, now - mark.at) / half_life_s)
    return decayed


def score(marks: Iterable[Mark], now: float, half_life_s: float = HALF_LIFE_S) -> float:
    total = 0.0
    crashes: dict[str, list[float]] = {}
    for mark in marks:
        one = weight(mark, now, half_life_s)
        if mark.cause == Cause.CRASH.value:
            crashes.setdefault(mark.job, []).append(one)
        else:
            total += one
    for each in crashes.values():
        total += min(CRASHES_WEIGH, sum(sorted(each, reverse=True)[:-1]))  # all but the first
    return total
