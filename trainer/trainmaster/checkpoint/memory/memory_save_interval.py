"""How often a rank saves to memory: at a fixed interval, or so often that saves take at most 1% of the time."""

from __future__ import annotations

import math
import os

from trainmaster.contract.wire import environment

SHARE = 0.01

MEASURED_SAVES = 3
"""Number of saves of a user's loop before their interval is chosen: the first two may also wait
until the pages of their files are allocated."""


class Interval:
    """The steps after which ranks save to memory, the same on all ranks.

    `every` is the number of steps between two saves. None: it is derived from the cost of a save. 0: only after a peer
    has died.
    """

    def __init__(self, every: int | None) -> None:
        self.every = every
        self.next = 0

    @classmethod
    def from_environment(cls) -> Interval:
        """Return the interval that the agent passes in TRAINMASTER_RAM_EVERY; without the variable it is derived from
        the cost of a save. Raises ValueError if the variable is no whole number."""
        given = os.environ.get(environment.RAM_EVERY)
        return cls(int(given) if given else None)

    def due(self, step: int) -> bool:
        """Return True if `step` is to be saved."""
        if self.every is None:
            return step >= self.next
        return self.every > 0 and step % self.every == 0

    def saved(self, step: int, save_s: float, step_s: float) -> None:
        """Note the seconds that the previous save and a step took, equal on all ranks; 0 means not known yet."""
        known = step_s > 0 and math.isfinite(save_s / step_s)
        self.next = step + (max(1, math.ceil(save_s / step_s / SHARE)) if known else 1)
