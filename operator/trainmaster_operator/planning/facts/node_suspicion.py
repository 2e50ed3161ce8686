"""Reasons to suspect nodes, as all jobs together know them. `node_score` says how much a reason weighs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

HALF_LIFE_S = 6 * 3600.0
SHARE = 0.2  # of the nodes that are known, at most; but one, where there are two


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
