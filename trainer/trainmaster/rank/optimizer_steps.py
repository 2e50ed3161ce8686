"""Numbers the steps of a script by the steps of its optimizers.

Optimizers that step in turn, as the two of a GAN do, make one step together: the number is that of the optimizer that
has stepped most often. A script may also train one model after another in a process, each with an optimizer of its own,
as the trials of a search do. So the steps of an optimizer that is new after the first step of those before it count on
from there. Such an optimizer never makes the number smaller or keeps it where it is.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary


class OptimizerSteps:
    """The steps that the optimizers of this process have taken. It depends on their order alone, so the ranks of a
    job, which take the same steps, have the same numbers."""

    def __init__(self) -> None:
        self.base = -1  # steps before this process, 0 as well where the optimizer counts none; -1: not known yet
        self._counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # number of each one's last step in the process
        self._start = 0  # the number after which the newest optimizers began
        self._highest = 0

    def next_number(self, optimizer: Any) -> int:
        """Return the number of the step that an optimizer is about to take."""
        base = self.base if self.base >= 0 else counted_by(optimizer) or 0
        return base + self._last(optimizer) + 1

    def take(self, optimizer: Any) -> int:
        """Count a step that an optimizer has taken, and return its number. The first one sets `base`."""
        if self.base < 0:
            self.base = max((counted_by(optimizer) or 1) - 1, 0)
        last = self._last(optimizer)
        if optimizer not in self._counts:
            self._start = last
        self._counts[optimizer] = last + 1
        self._highest = max(self._highest, last + 1)
        return self.base + last + 1

    def _last(self, optimizer: Any) -> int:
        """Return the number of the last step of an optimizer, or the one after which it begins if it is new."""
        known = self._counts.get(optimizer)
        if known is not None:
            return known
        return self._highest if self._highest > self._start + 1 else self._start


def counted_by(optimizer: Any) -> int | None:
    """Return the step that the optimizer's own state counts, as Adam's does, or None if it counts none."""
    for state in list(optimizer.state.values())[:1]:
        taken = state.get("step") if isinstance(state, dict) else None
        if taken is not None and getattr(getattr(taken, "device", None), "type", "cpu") == "cpu":
            return int(taken)
    return None
