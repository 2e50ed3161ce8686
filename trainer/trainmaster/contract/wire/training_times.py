"""When a round trained, as one agent saw it: for a leader that takes over after some minutes without a leader.

A new leader would otherwise use the time of the report as the time of the event. The clocks of two machines cannot be
compared, so an agent sends ages: seconds before its report, on its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT = 4
"""Number of rounds that an agent remembers, with the current one. Agents open fewer while no leader answers."""


@dataclass(frozen=True)
class Trained:
    """The training of one round on one agent. `saved_s` and `evaluated_s` are those of the slowest of its ranks."""

    round: int
    first_step_s: float | None = None  # age of the first step that one of its ranks completed here; None: none did
    last_sign_s: float = 0.0  # age of the newest sign of life of its ranks: when training stopped, if it has
    step: int = 0  # the last that its ranks completed
    resumed_step: int | None = None  # the step that they began after, as far as they told
    resumed_tier: str = ""
    saved_s: float = 0.0  # for which saving stopped training
    evaluated_s: float = 0.0
