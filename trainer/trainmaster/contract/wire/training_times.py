"""When a round trained, as one agent saw it: what a leader needs that comes after minutes without any.

A leader that learns of a round late would take the time at which it hears for the time at which things happened.
Clocks of two machines can't be compared, so an agent sends ages: seconds before its report, on its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT = 4
"""Rounds that an agent remembers, the current one included. Agents open fewer while no leader answers."""


@dataclass(frozen=True)
class Trained:
    """One round on one agent. The total seconds are those of the slowest of its ranks."""

    round: int
    first_step_s: float | None = None  # age of the first step that one of its ranks completed here; None: none did
    last_sign_s: float = 0.0  # age of the newest sign of life of its ranks: when training stopped, if it has
    step: int = 0  # the last that its ranks completed
    resumed_step: int | None = None  # the step that they began after, as far as they told
    resumed_tier: str = ""
    saved_s: float = 0.0  # for which saving stopped training
    evaluated_s: float = 0.0
