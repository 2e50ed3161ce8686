"""Numbers the steps of a script by the steps of its optimizers.

Optimizers that step in turn, as the two of a GAN do, make one step together: the number is that of the optimizer that
has stepped most often. A script may also train one model after another in a process, each with an optimizer of its own,
as the trials of a search do. So the steps of an optimizer that is new after the first step of those before it count on
from there. Such an optimizer never makes the number smaller or keeps it where it is.

After a restart the number goes on from that of the restored optimizer that has stepped most often, whichever of them
steps first.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet


def counted_by(optimizer: Any) -> int | None:
    """Return the step that the optimizer's own state counts, as Adam's does, or None if it counts none."""
    states = getattr(optimizer, "state", None)
    for state in list(states.values())[:1] if isinstance(states, Mapping) else []:
        taken = state.get("step") if isinstance(state, dict) else None
        if taken is not None and getattr(getattr(taken, "device", None), "type", "cpu") == "cpu":
            try:
                return int(taken)
            except (TypeError, ValueError, RuntimeError):  # of a script's own kind: a count for each row, for example
                return None
    return None


Count = Callable[[Any], int | None]
"""Returns the steps that an optimizer, or what steps for several of them, has taken; None if it doesn't count them."""


class OptimizerSteps:
    """The steps that the optimizers of this process have taken. It depends on their order alone, so the ranks of a
    job, which take the same steps, have the same numbers."""

    def __init__(self) -> None:
        self.base = -1  # steps before this process, 0 as well where no optimizer counts them; -1: not known yet
        self.counted = False  # an optimizer counts those steps
        self._made: WeakSet[Any] = WeakSet()  # optimizers that were made before the first step
        self._recorded: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # `_recorded()` when each was made
        self._before: int | None = None  # the most steps that one of them has counted then
        self._counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # number of each one's last step in the process
        self._start = 0  # the number after which the newest optimizers began
        self._highest = 0

    def watch(self, kind: Any) -> None:
        """Note each optimizer of a class, torch's `Optimizer`, when it is made, copied or unpickled."""
        original = getattr(kind, "_patch_step_function", None)
        if original is None:
            return

        @functools.wraps(original)
        def patch_step_function(optimizer: Any) -> None:
            original(optimizer)
            self.made(optimizer)

        kind._patch_step_function = patch_step_function

    def made(self, optimizer: Any) -> None:
        """Note an optimizer, whose state may be restored before the first step of this process."""
        self._recorded[optimizer] = _recorded()
        if self.base < 0:
            self._made.add(optimizer)

    def only_fills(self, optimizer: Any) -> bool:
        """Return True if the next step only fills the optimizer's empty state.

        All ranks must answer the same, and a rank may look only at its own gradients. In a pipeline whose last stage
        begins with zeros, those of all other stages are 0 in the first step. So a forward pass since the optimizer was
        made means that the step trains.
        """
        return only_fills(optimizer) and _recorded() <= self._recorded.get(optimizer, math.inf)

    def next_number(self, optimizer: Any, count: Count = counted_by) -> int:
        """Return the number of the step that an optimizer is about to take. Call it before each `take`."""
        base = self.base
        if base < 0:
            counts = [count(optimizer), *(counted_by(other) for other in self._made)]
            self._before = max((steps for steps in counts if steps is not None), default=None)
            base = self._before or 0
        return base + self._last(optimizer) + 1

    def take(self, optimizer: Any, count: Count = counted_by) -> int:
        """Count a step that an optimizer has taken, and return its number. The first one sets `base` and `counted`."""
        if self.base < 0:
            own = count(optimizer)
            self.base = max((own or 1) - 1, self._before or 0)
            self.counted = own is not None or self._before is not None
            self._made.clear()
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


def _recorded() -> int:
    """Return the number of operations that autograd has recorded in this thread, or 0 if torch does not tell it."""
    count = getattr(sys.modules.get("torch.autograd"), "_get_sequence_nr", None)
    return int(count()) if count is not None else 0


def only_fills(optimizer: Any) -> bool:
    """Return True if the next step changes no parameter: the optimizer's state is empty, its rates and its gradients
    are 0.

    A first step of a warm-up has a rate of 0 too, but other gradients.
    """
    if optimizer.state or any(_is_a_rate(group.get("lr", 1)) for group in optimizer.param_groups):
        return False
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    # Of a distributed tensor a rank looks at its own part, for it must not wait for others here.
    return bool(gradients) and not any(bool(getattr(grad, "_local_tensor", grad).any()) for grad in gradients)


def _is_a_rate(rate: Any) -> bool:
    """Return True if a learning rate is not 0. One with a value for each layer, which has no truth, counts as one."""
    try:
        return bool(rate)
    except (ValueError, RuntimeError):
        return True
