"""The hooks of torch's optimizers: each step that trains is counted, and injected faults take effect before it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

from trainmaster.contract.wire import environment
from trainmaster.contract.wire.fault_protocol import ARMED
from trainmaster.rank import script_saves
from trainmaster.rank.optimizer_steps import Count, OptimizerSteps, counted_by

FILLING = {
    "torch.distributed.checkpoint.state_dict": "_init_optim_state",
    "horovod.torch.functions": "broadcast_optimizer_state",
}
"""Functions that take a step of an optimizer whose state is empty, so that there is a state to load or to send."""


class Observer(Protocol):
    """The observer of the script that takes the steps."""

    own_loop: bool

    def yielded(self) -> bool:
        """Return True if this process must not write progress."""

    def took(self, owner: Any, count: Count) -> None:
        """Count a step that an optimizer, or the owner of several, has taken."""


@dataclass
class _Whole:
    """A step that consists of the steps of several optimizers, or of one optimizer several times."""

    number: int
    begun: bool = False  # the first of them has


class OptimizerHooks:
    """The hooks of this process. They number a step by `steps` before it is taken, and report it to the observer."""

    def __init__(self, observer: Observer, steps: OptimizerSteps) -> None:
        self._observer = observer
        self._steps = steps
        self._begun: WeakSet[Any] = WeakSet()  # optimizers whose step has begun and is not counted yet
        self._whole: _Whole | None = None  # the step under way that consists of steps of optimizers
        self._filling = False  # torch takes a step that changes nothing, to fill an optimizer's empty state
        self._filled: Any = None  # an optimizer with which somebody else does so

    def hook_steps(self, module: Any) -> None:
        """Hook all optimizers of `torch.optim.optimizer`."""
        module.register_optimizer_step_post_hook(self._after_step)
        if not self._observer.own_loop:
            module.register_optimizer_step_pre_hook(self._before_step)
            self._steps.watch(module.Optimizer)

    def hook_filling(self, module: Any) -> None:
        """Hook the function that fills an empty optimizer state, whose optimizer steps are no steps of the training."""
        name = FILLING[module.__name__]
        original = getattr(module, name, None)
        if self._observer.own_loop or original is None:
            return

        @functools.wraps(original)
        def fill(*args: Any, **kwargs: Any) -> Any:
            self._filling = True
            try:
                return original(*args, **kwargs)
            finally:
                self._filling = False

        script_saves.put_in_place(module, name, fill)

    @contextlib.contextmanager
    def one_step(self, owner: Any, count: Count) -> Iterator[None]:
        """Return a context in which the steps of all optimizers are one step of the owner. See `Watch.one_step` of
        `frameworks.framework`."""
        self._whole = whole = _Whole(self._steps.next_number(owner, count))
        try:
            yield
        finally:
            self._whole = None
        if not whole.begun:  # DeepSpeed skips its optimizer if gradients of half precision overflow
            self._strike(whole.number)
        self._observer.took(owner, count)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        self._begun.add(optimizer)
        whole = self._whole
        if whole is not None:
            if not whole.begun:
                whole.begun = True
                self._strike(whole.number, optimizer)
            return
        if not self._filling and self._steps.only_fills(optimizer):
            self._filled = optimizer
        if not self._filling and self._filled is None:
            self._strike(self._steps.next_number(optimizer), optimizer)

    def _strike(self, step: int, optimizer: Any = None) -> None:
        if not self._observer.yielded():
            strike(step, optimizer)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        # Horovod's optimizers call the step of their parent class, and torch calls its hooks for both.
        if not self._observer.own_loop and optimizer not in self._begun:
            return
        self._begun.discard(optimizer)
        if self._filling or self._filled is optimizer:
            self._filled = None
        elif self._whole is None:
            self._observer.took(optimizer, counted_by)


def strike(step: int, optimizer: Any = None, *, after: int | None = None) -> None:
    """Let the injected faults of a step take effect, those in gradients in the optimizer that is about to step.

    `after`: the last step that was seen before this one, as in `injected_faults.at_step`.
    """
    faults = _faults()
    if faults is not None:
        groups = optimizer.param_groups if optimizer is not None else ()
        faults.at_step(
            step, numbers=lambda: faults.gradients(p for group in groups for p in group["params"]), after=after
        )


def _faults() -> Any:
    """Return the module of injected faults if one was asked for, which is rare, else None."""
    known = sys.modules.get("trainmaster.rank.injected_faults")
    folder = os.environ.get(environment.FAULT_DIR)
    if known is None and (os.environ.get(environment.FAULTS) or (folder and os.path.exists(f"{folder}/{ARMED}"))):
        known = importlib.import_module("trainmaster.rank.injected_faults")
    return known
