"""The scores of evaluations: which step was the best, and whether the run stops early."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainmaster.contract.config import EarlyStopConfig


class Scores:
    """The losses of all evaluations. All ranks add the same losses, so all of them find the same.

    `of` names the data of the evaluations; losses on other data are not compared. `keep_best` says whether the
    checkpoint of the best step is kept.
    """

    def __init__(self, of: str, stop: EarlyStopConfig | None = None, *, keep_best: bool = False) -> None:
        self.step, self.loss = 0, math.nan  # step and loss of the last evaluation
        self.best, self.best_step = math.inf, 0
        self.since = 0  # evaluations without an improvement
        self._of, self._stop, self._keep_best = of, stop, keep_best
        self._bar = math.inf  # what an improvement is an improvement on

    def add(self, step: int, loss: float) -> bool:
        """Add the loss of a step, and return True if it is the lowest so far. NaN never is."""
        self.step, self.loss = step, loss
        margin = self._stop.minDelta if self._stop is not None else 0.0
        if loss < self._bar - margin:
            self._bar, self.since = loss, 0
        else:
            self.since += 1
        if not loss < self.best:
            return False
        self.best, self.best_step = loss, step
        return True

    @property
    def stops(self) -> bool:
        """Return True if the run ends here, before its last step."""
        return self._stop is not None and self.since >= self._stop.patience

    def explain_stop(self) -> str:
        """Return why the run ends here, in words for people."""
        return (
            f"training stops early: none of the last {self.since} evaluations was an improvement; the best was "
            f"step {self.best_step}'s, loss {self.best:.4f} (training.evaluation.stop)"
        )

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint. `keep` is the step whose checkpoint must not be removed."""
        state = {
            "of": self._of,
            "step": self.step,
            "loss": self.loss,
            "best": self.best,
            "best_step": self.best_step,
            "bar": self._bar,
            "since": self.since,
        }
        return {**state, "keep": self.best_step} if self._keep_best else state

    def load(self, state: Mapping[str, Any]) -> None:
        """Set the state of a checkpoint."""
        if state.get("of") != self._of:
            return
        # JSON has what isn't finite as text.
        self.loss, self.best, self._bar = (float(state[name]) for name in ("loss", "best", "bar"))
        self.step, self.best_step, self.since = (int(state[name]) for name in ("step", "best_step", "since"))
