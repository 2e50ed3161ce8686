"""When to save to memory: each so many steps, or as often as it costs at most a hundredth of the time."""

from __future__ import annotations

import math
import os

from trainmaster.contract.wire import environment

SHARE = 0.01


class Interval:
    """`every` None: by cost. 0: never, only when a peer has died. All ranks must come to the same steps."""

    def __init__(self, every: int | None) -> None:
        self.every = every
        self.next = 0

    @classmethod
    def from_environment(cls) -> Interval:
        given = os.environ.get(environment.RAM_EVERY)
        return cls(int(given) if given else None)

    def due(self, step: int) -> bool:
        """Return whether `step` is to be saved."""
        if self.every is None:
            return step >= self.next
        return self.every > 0 and step % self.every == 0

    def saved(self, step: int, save_s: float, step_s: float) -> None:
        """Set when the next save is due, from the seconds that a save and a step took; 0: not known yet.

        The numbers must be the same on all ranks.
        """
        known = step_s > 0 and math.isfinite(save_s / step_s)
        self.next = step + (max(1, math.ceil(save_s / step_s / SHARE)) if known else 1)
