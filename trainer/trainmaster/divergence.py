"""Whether training still makes sense: a loss that is not finite, or far above what it was."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

from trainmaster.contract.config import DivergenceConfig


class Divergence:
    """Looks at one step after the other. All ranks see the same numbers, so all come to the same finding."""

    def __init__(self, config: DivergenceConfig) -> None:
        self.factor = config.spikeFactor
        self._losses: deque[float] = deque(maxlen=config.window)
        self._judged = 0  # the last step that was found to be sound

    def finding(self, step: int, loss: float, norm: float) -> str:
        """What is wrong with a step, in words; "" when nothing is, and then the step counts for those that follow.

        A step may be asked about again.
        """
        if step <= self._judged:
            return ""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return f"step {step}: loss is {loss}, gradient norm is {norm}"
        if self.factor is None:
            self._judged = step
            return ""
        if len(self._losses) == self._losses.maxlen:
            usual = statistics.median(self._losses)
            if loss > self.factor * usual:
                return (
                    f"step {step}: loss is {loss:.6g}, more than {self.factor:g} times {usual:.6g}, the median of the "
                    f"{len(self._losses)} steps before (training.divergence)"
                )
        self._losses.append(loss)
        self._judged = step
        return ""

    def losses(self) -> list[float]:
        """What a checkpoint keeps, so that a resumed run judges as an uninterrupted one."""
        return list(self._losses)

    def resume(self, losses: Iterable[float]) -> None:
        self._losses.clear()
        if self.factor is not None:
            self._losses.extend(losses)
