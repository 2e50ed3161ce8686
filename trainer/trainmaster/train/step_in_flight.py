"""What is known of a step between the end of its backward pass and the arrival of its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from trainmaster.train.async_transfer import Reading


@dataclass(frozen=True)
class StepRecord:
    """A completed step whose numbers may still be on their way from the device."""

    step: int
    reading: Reading  # loss, gradient norm, steps to record, norm of the first micro-batch; in fp16 also the loss scale
    tokens: int  # tokens of the whole world
    own_tokens: int  # tokens that this rank counts
    rate: float
    seconds: float = math.nan

    def numbers(self) -> tuple[float, float, dict[str, Any]]:
        """Return (loss, gradient norm, further metrics). It waits for the device if they have not arrived."""
        loss, norm, _, _, *scale = self.reading.values()
        if not scale:
            return loss, norm, {}
        if math.isfinite(norm):
            return loss, norm, {"loss_scale": scale[0]}
        return loss, 0.0, {"loss_scale": scale[0], "skipped": True}  # gradients that were dropped

    def metrics(self) -> dict[str, Any]:
        """Return the numbers of every step for its line in metrics.jsonl. It waits for the device, as `numbers`."""
        loss, norm, further = self.numbers()
        return {
            "step": self.step,
            "loss": loss,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 6),
            "lr": self.rate,
            "grad_norm": norm,
            **further,
        }

    def to_record(self) -> int:
        """Return how many steps are to be recorded for a profile, the same on all ranks; nearly always 0."""
        return round(self.reading.values()[2])

    def first_norm(self) -> float:
        """Return the norm of the first micro-batch's gradient, as it is summed with the others; 0 if it was not asked
        for."""
        return self.reading.values()[3]

    def finite(self) -> bool:
        """Return True if loss and norm are finite. It waits for the device if they have not arrived."""
        loss, norm, _ = self.numbers()
        return math.isfinite(loss) and math.isfinite(norm)


@dataclass(frozen=True)
class Prepared:
    """A step whose gradients are complete on this rank: only the sums over all ranks are missing."""

    step: int
    tokens: int  # tokens of the whole world
    own_tokens: int  # tokens that this rank counts
    began: float  # by the monotonic clock
