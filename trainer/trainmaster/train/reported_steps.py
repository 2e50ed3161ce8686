"""Steps that a script reports one by one, with any framework and without torch: `run.report(step=12, loss=loss)`."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

from trainmaster.agent import frameworks
from trainmaster.agent.frameworks.pytorch import FAMILY
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.progress_record import Phase
from trainmaster.rank import injected_faults, step_recording
from trainmaster.rank.reporter import Reporter


class ToldSteps:
    """One process of a run whose script has its own loop and its own checkpoints. `tm.init()` returns it where torch is
    not installed, and in jobs of a framework other than torch.

    Where `tm.init()` returns a `Run` instead, `run.report(step=...)` does the same.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._step = 0

    @property
    def step(self) -> int:
        """Return the number of the last completed step, 0 before the first one."""
        return self._step

    def report(self, loss: Any = None, tokens: int = 0, *, step: int | None = None, **metrics: Any) -> None:
        """Report that a step is completed, with its numbers.

        - `loss` and `metrics`: numbers, or arrays that hold one number. The call waits until an array is computed.
        - `tokens`: the number of tokens that all ranks together consumed in this step.
        - `step`: the number of the step, counted from 1. A script that has resumed continues to count. Default: one
          more than the last step.

        Raises ValueError for a step below 1.
        """
        self._step = complete(self._reporter, self._step + 1 if step is None else step, loss, tokens, metrics)

    def event(self, reason: str, message: str) -> None:
        """Add an event to the job, which `kubectl describe` and the report show. `reason` is one CamelCase word."""
        self._reporter.event(reason, message)


def complete(reporter: Reporter, step: int, loss: Any, tokens: int, metrics: dict[str, Any]) -> int:
    """Publish that `step` is completed, and return it. An injected fault of this step takes effect here.

    Raises ValueError for a step below 1.
    """
    step = int(step)
    if step < 1:
        raise ValueError(f"run.report(step={step}): steps are counted from 1")
    numbers = {name: float(value) for name, value in {"loss": loss, **metrics}.items() if value is not None}
    injected_faults.at_step(step, reporter.rank)
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
    step_recording.completed(step, reporter.phase)
    return step


def init(checkpoint_dir: str | os.PathLike[str] | None = None, keep: int = 3) -> Any:
    """Return the run that this process is a part of: a `Run`. Call it once, before the training loop.

    - `checkpoint_dir`: the folder in which `run.steps()` saves checkpoints. A job has its own folder, which takes
      precedence. Default: outside of a job nothing is saved.
    - `keep`: the number of checkpoints to keep. Older ones are deleted.

    It initializes neither `torch.distributed` nor a device; the script does. Where torch is not installed, and in jobs
    of a framework other than torch, the result is a `ToldSteps`, which has only `step`, `report(step=...)` and `event`.
    Then `checkpoint_dir` raises ValueError, because nothing would be saved there.
    """
    trains_with_torch = frameworks.find(os.environ.get(environment.FRAMEWORK) or "PyTorch").family == FAMILY
    if trains_with_torch and importlib.util.find_spec("torch") is not None:
        return importlib.import_module("trainmaster.train.user_loop").init(checkpoint_dir, keep)
    if checkpoint_dir is not None:
        raise ValueError("tm.init(checkpoint_dir=...): only scripts of torch save there; leave it out")
    return ToldSteps(Reporter.from_environment())
