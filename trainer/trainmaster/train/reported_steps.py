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
from trainmaster.rank import injected_faults, metrics_writer, step_recording
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

    def resumed(self, step: int) -> None:
        """Say that this process continues after `step`, whose checkpoint it has loaded; 0: it begins. Call it before
        the first report.

        A script that does not report every step calls it, because otherwise nothing shows where such a script
        continued. A script that reports every step need not.

        Raises ValueError for a step below 0, or after a report.
        """
        self._step = begin(self._reporter, step)

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


def begin(reporter: Reporter, step: int) -> int:
    """Publish that this process continues after `step`, and return it.

    Raises ValueError for a step below 0, or after a report.
    """
    step = int(step)
    if step < 0:
        raise ValueError(f"run.resumed({step}): the step must be 0 or more")
    if reporter.progress.first_step_ns:
        raise ValueError(f"run.resumed({step}): call it before the first run.report()")
    reporter.resumed(step, None)
    return step


def complete(reporter: Reporter, step: int, loss: Any, tokens: int, metrics: dict[str, Any]) -> int:
    """Publish that `step` is completed, and return it. An injected fault of this step takes effect here.

    Raises ValueError for a step below 1.
    """
    step = int(step)
    if step < 1:
        raise ValueError(f"run.report(step={step}): steps are counted from 1")
    numbers = {name: float(value) for name, value in {"loss": loss, **metrics}.items() if value is not None}
    progress = reporter.progress
    if not progress.first_step_ns:
        if progress.resumed_step < 0:
            reporter.resumed(_began_after(reporter, step), None)
        progress.phase = Phase.STEP
    injected_faults.at_step(step, reporter.rank, after=progress.step)
    if "loss" in numbers:
        reporter.loss(step, numbers["loss"])
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    reporter.stepped(step, tokens // world_size)  # an agent hears of its own ranks' share
    if reporter.under_agent:
        reporter.metrics(step=step, round=reporter.round, **numbers)
    step_recording.completed(step, reporter.phase)
    return step


def _began_after(reporter: Reporter, first: int) -> int:
    """Return the step after which a process began that reports `first` first, and did not say where it continued.

    It is the last step below `first` that an earlier round reported, because a script may report only every 20th step.
    Without such a report it is the step before `first`, as in a script that reports every step.
    """
    told = metrics_writer.last_step_before(reporter.output, first, reporter.round) if reporter.output else None
    return first - 1 if told is None else told


def init(checkpoint_dir: str | os.PathLike[str] | None = None, keep: int = 3) -> Any:
    """Return the run that this process is a part of: a `Run`. Call it once, before the training loop.

    - `checkpoint_dir`: the folder in which `run.steps()` saves checkpoints. A job has its own folder, which takes
      precedence. Default: outside of a job nothing is saved.
    - `keep`: the number of checkpoints to keep. Older ones are deleted.

    It initializes neither `torch.distributed` nor a device; the script does. Where torch is not installed, and in jobs
    of a framework other than torch, the result is a `ToldSteps`, which has only `step`, `resumed`, `report(step=...)`
    and `event`. Then `checkpoint_dir` raises ValueError, because nothing would be saved there.
    """
    trains_with_torch = frameworks.find(os.environ.get(environment.FRAMEWORK) or "PyTorch").family == FAMILY
    if trains_with_torch and importlib.util.find_spec("torch") is not None:
        return importlib.import_module("trainmaster.train.user_loop").init(checkpoint_dir, keep)
    if checkpoint_dir is not None:
        raise ValueError("tm.init(checkpoint_dir=...): only scripts of torch save there; leave it out")
    return ToldSteps(Reporter.from_environment())
