"""Divergence: a loss that is not finite, or a loss or gradients far above those of earlier steps."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

from trainmaster.contract.config import DivergenceConfig


class Divergence:
    """Checks one step after another. All ranks see the same numbers, so all of them find the same."""

    def __init__(self, config: DivergenceConfig) -> None:
        self._loss = _Spikes("loss", config.spikeFactor, config.window)
        self._norm = _Spikes("gradient norm", config.normSpikeFactor, config.window)
        self._judged = 0  # the last step that was found to be sound

    def finding(self, step: int, loss: float, norm: float | None) -> str:
        """Return what is wrong with a step, or "" if nothing is; then later steps are compared with it, too.

        `norm` is None if the gradients overflowed in fp16 and were dropped: such a step has no norm to compare. A step
        may be checked more than once.
        """
        if step <= self._judged:
            return ""
        if not (math.isfinite(loss) and (norm is None or math.isfinite(norm))):
            return f"step {step}: loss is {loss}, gradient norm is {'not finite' if norm is None else norm}"
        wrong = self._loss.wrong(loss) or ("" if norm is None else self._norm.wrong(norm))
        if wrong:
            return f"step {step}: {wrong} (training.divergence)"
        self._loss.add(loss)
        if norm is not None:
            self._norm.add(norm)
        self._judged = step
        return ""

    def losses(self) -> list[float]:
        """Return the losses that a checkpoint keeps, so that a resumed run finds the same as an uninterrupted one."""
        return list(self._loss.before)

    def norms(self) -> list[float]:
        """Return the norms of gradients that a checkpoint keeps."""
        return list(self._norm.before)

    def resume(self, losses: Iterable[float], norms: Iterable[float] = ()) -> None:
        """Set the losses and norms of a checkpoint. Those of earlier releases have a norm of 0 for each step that fp16
        dropped: such norms are left out."""
        self._loss.resume(losses)
        self._norm.resume(norm for norm in norms if norm)


class _Spikes:
    """Compares a number of each step with the median of earlier steps. With `factor` None it does nothing."""

    def __init__(self, what: str, factor: float | None, window: int) -> None:
        self.before: deque[float] = deque(maxlen=window)
        self._what, self._factor = what, factor

    def wrong(self, value: float) -> str:
        if self._factor is None or len(self.before) < (self.before.maxlen or 0):
            return ""
        usual = statistics.median(self.before)
        if value <= self._factor * usual:
            return ""
        return (
            f"{self._what} is {value:.6g}, more than {self._factor:g} times {usual:.6g}, the median of the "
            f"{len(self.before)} steps before"
        )

    def add(self, value: float) -> None:
        if self._factor is not None:
            self.before.append(value)

    def resume(self, values: Iterable[float]) -> None:
        self.before.clear()
        if self._factor is not None:
            self.before.extend(values)
