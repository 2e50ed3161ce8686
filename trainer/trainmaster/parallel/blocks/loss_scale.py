"""The loss scale of fp16: its first value, when it changes, and what a run does whose gradients overflow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class LossScale:
    """The factor of the loss that keeps small gradients in the range of fp16. It is 1 for other precisions.

    Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740. When a gradient overflows, the scale is halved
    and the gradients of that step are dropped. After GROWS_AFTER steps without an overflow it is doubled. An overflow
    on one rank shows in the norm over all axes, which all ranks know anyway. So all ranks, also the stages of a
    pipeline, skip the same steps without further communication. The scale stays on the device.
    """

    FIRST = 2.0**16
    GROWS_AFTER = 2000  # steps
    LEAST = 2.0**-10

    def __init__(self, precision: str, device: torch.device | str) -> None:
        self.on = precision == "fp16"
        self._scale = torch.full((), self.FIRST, device=device)
        self._steps = torch.zeros((), device=device)  # since it was changed

    def scaled(self, divisor: float) -> float | Tensor:
        """Return the divisor of the loss that also applies the scale."""
        return divisor / self._scale if self.on else divisor

    def unscaled(self, scaled: Tensor) -> Tensor:
        """Return a loss or a norm without the scale."""
        return scaled / self._scale.to(scaled.dtype) if self.on else scaled

    def overflowed(self, norm: Tensor) -> Tensor | None:
        """Return 1.0 if gradients of this norm are to be dropped, else 0.0, or None if gradients are never dropped."""
        return (~norm.isfinite()).float() if self.on else None

    def update(self, overflowed: Tensor | None) -> None:
        """Halve the scale after an overflow, and double it after GROWS_AFTER steps without one."""
        if overflowed is None:
            return
        dropped = overflowed.bool()
        self._steps = torch.where(dropped, 0.0, self._steps + 1)
        grows = self._steps >= self.GROWS_AFTER
        self._scale = torch.where(dropped, self._scale / 2, torch.where(grows, self._scale * 2, self._scale))
        self._steps = torch.where(grows, 0.0, self._steps)

    @property
    def value(self) -> Tensor:
        """Return the current scale, a scalar on the device."""
        return self._scale

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, {} for other precisions than fp16. It waits for the device."""
        return {"scale": self._scale.item(), "steps": int(self._steps.item())} if self.on else {}

    def load(self, state: dict[str, Any]) -> None:
        """Set the state of a checkpoint."""
        if self.on and state:
            self._scale.fill_(state["scale"])
            self._steps.fill_(state["steps"])


def exhausted(step: int, numbers: dict[str, Any]) -> str:
    """Return a sentence if gradients overflow even with the smallest loss scale, or "" if they do not."""
    scale = numbers.get("loss_scale", LossScale.FIRST)
    return (
        f"step {step}: gradients overflow in fp16 even with a loss scale of {scale:g}"
        if scale < LossScale.LEAST
        else ""
    )
