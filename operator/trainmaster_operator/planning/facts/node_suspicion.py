"""Reasons to suspect nodes, collected from all jobs. `node_score` gives each reason its weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

HALF_LIFE_S = 6 * 3600.0


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
