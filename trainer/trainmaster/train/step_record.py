"""What is known of a step at the moments between its gradients and its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from trainmaster.train.transfer import Reading


@dataclass(frozen=True)
class StepRecord:
    """A step whose numbers may still be on their way from the device."""

    step: int
    reading: Reading  # loss, gradient norm, steps to record, norm of the first micro-batch; in fp16 also the loss scale
    tokens: int  # of the whole world
    own_tokens: int  # of this rank
    rate: float
    seconds: float = math.nan

    def numbers(self) -> tuple[float, float, dict[str, Any]]:
        """(loss, gradient norm, what is told besides). Waits for the device if they haven't arrived."""
        loss, norm, _, _, *scale = self.reading.values()
        if not scale:
            return loss, norm, {}
        if math.isfinite(norm):
            return loss, norm, {"loss_scale": scale[0]}
        return loss, 0.0, {"loss_scale": scale[0], "skipped": True}  # gradients that were dropped

    def to_record(self) -> int:
        """How many steps are to be recorded, as all ranks know by this step; 0 nearly always."""
        return round(self.reading.values()[2])

    def first_norm(self) -> float:
        """Of the first micro-batch's gradient, as it is summed with the others; 0 where nobody asked."""
        return self.reading.values()[3]

    def finite(self) -> bool:
        """Waits for the device if the numbers haven't arrived."""
        loss, norm, _ = self.numbers()
        return math.isfinite(loss) and math.isfinite(norm)


@dataclass(frozen=True)
class Prepared:
    """A step whose gradients are complete: only the sums over all ranks are missing."""

    step: int
    tokens: int  # of the whole world
    own_tokens: int  # of this rank
    began: float  # by the monotonic clock
