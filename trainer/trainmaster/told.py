"""Steps that a script tells one by one, of any framework and without torch: `run.report(step=12, loss=loss)`."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

from trainmaster import faults
from trainmaster.agent import frameworks
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.progress import Phase
from trainmaster.report import Reporter


class ToldSteps:
    """One process's part of a run whose script keeps its own loop and its own checkpoints. `tm.init()` makes it.

    In images with torch, `tm.init()` makes a `trainmaster.steps.Run` instead, which has this `report` as well.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._step = 0

    @property
    def step(self) -> int:
        """The last completed step."""
        return self._step

    def report(self, loss: Any = None, tokens: int = 0, *, step: int | None = None, **metrics: Any) -> None:
        """Tell that a step is completed, and its numbers.

        step: its number, from 1; a script that has resumed goes on counting. Default: one more than the last. loss and
        metrics: numbers, or arrays of one number, which are waited for. tokens: consumed over all ranks. Raises
        ValueError for a step below 1.
        """
        self._step = complete(self._reporter, self._step + 1 if step is None else step, loss, tokens, metrics)

    def event(self, reason: str, message: str) -> None:
        """Tell people of something: it shows up in the job's events. `reason` is one CamelCase word."""
        self._reporter.event(reason, message)


def complete(reporter: Reporter, step: int, loss: Any, tokens: int, metrics: dict[str, Any]) -> int:
    """Publish that `step` is completed, and return it. A fault of this step strikes here. Raises ValueError for a step
    below 1."""
    step = int(step)
    if step < 1:
        raise ValueError(f"run.report(step={step}): steps are counted from 1")
    numbers = {name: float(value) for name, value in {"loss": loss, **metrics}.items() if value is not None}
    faults.at_step(step, reporter.rank)
    progress = reporter.progress
    if not progress.first_step_ns:
        reporter.resumed(step - 1, None)
        progress.phase = Phase.STEP
    if "loss" in numbers:
        reporter.loss(step, numbers["loss"])
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    reporter.stepped(step, tokens // world_size)  # an agent hears of its own ranks' share
    if reporter.under_agent:
        reporter.metrics(step=step, round=reporter.round, **numbers)
    return step


def init(checkpoint_dir: str | os.PathLike[str] | None = None, keep: int = 3) -> Any:
    """Return this process's run: a `trainmaster.steps.Run`, or without torch a `ToldSteps`. A job of another framework
    needs no torch, whether its image has one or not.

    checkpoint_dir and keep are for `run.steps()`, see `trainmaster.steps.init`. Raises ValueError if a folder is given
    where nothing would be saved in it.
    """
    trains_with_torch = not frameworks.find(os.environ.get(environment.FRAMEWORK) or "PyTorch").addresses
    if trains_with_torch and importlib.util.find_spec("torch") is not None:
        return importlib.import_module("trainmaster.steps").init(checkpoint_dir, keep)
    if checkpoint_dir is not None:
        raise ValueError("tm.init(checkpoint_dir=...): only scripts of torch save there; leave it out")
    return ToldSteps(Reporter.from_environment())
