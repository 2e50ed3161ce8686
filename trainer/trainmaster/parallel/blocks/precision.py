"""Precision of the computation. Master weights, sums of gradients and optimizer state are always fp32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""What blocks compute in. fp8 is of matrix products alone (see `float8`)."""


def policies(precision: str, casts: bool = True) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy]:
    """(of a block, of the whole model). Parameters are cast for the computation, gradients are reduced in fp32."""
    if precision == "fp32":
        return MixedPrecisionPolicy(), MixedPrecisionPolicy()
    cast = {"param_dtype": DTYPES[precision], "reduce_dtype": torch.float32}
    # Only the model's own output is cast back: between blocks, and between stages, activations stay as they are.
    return MixedPrecisionPolicy(**cast), MixedPrecisionPolicy(**cast, output_dtype=torch.float32 if casts else None)


class LossScale:
    """What the loss is multiplied by, so that small gradients are none too small for fp16 (Micikevicius et al., "Mixed
    Precision Training", arXiv 1710.03740). Always 1 for other precisions.

    It is halved when a gradient overflows, and that step's gradients are dropped; after GROWS_AFTER steps without it is
    doubled. What overflows on one rank shows in the norm over all axes, which all ranks know anyway: so all skip the
    same steps, stages of a pipeline too, without asking each other. Everything stays on the device.
    """

    FIRST = 2.0**16
    GROWS_AFTER = 2000  # steps
    LEAST = 2.0**-10

    def __init__(self, precision: str, device: torch.device | str) -> None:
        self.on = precision == "fp16"
        self._scale = torch.full((), self.FIRST, device=device)
        self._steps = torch.zeros((), device=device)  # since it was changed

    def scaled(self, divisor: float) -> float | Tensor:
        """Return the divisor of a loss that makes it a scaled loss."""
        return divisor / self._scale if self.on else divisor

    def unscaled(self, scaled: Tensor) -> Tensor:
        """Return a loss or a norm without the scale."""
        return scaled / self._scale.to(scaled.dtype) if self.on else scaled

    def overflowed(self, norm: Tensor) -> Tensor | None:
        """Return 1.0 if gradients of this norm are to be dropped, else 0.0, as a scalar tensor.

        None where none ever are.
        """
        return (~norm.isfinite()).float() if self.on else None

    def update(self, overflowed: Tensor | None) -> None:
        """Halve the scale after an overflow, and double it after many steps without one.

        Nothing waits for the device.
        """
        if overflowed is None:
            return
        dropped = overflowed.bool()
        self._steps = torch.where(dropped, 0.0, self._steps + 1)
        grows = self._steps >= self.GROWS_AFTER
        self._scale = torch.where(dropped, self._scale / 2, torch.where(grows, self._scale * 2, self._scale))
        self._steps = torch.where(grows, 0.0, self._steps)

    @property
    def value(self) -> Tensor:
        """The scale now."""
        return self._scale

    def state(self) -> dict[str, Any]:
        """Return the scale as a checkpoint keeps it. Waits for the device."""
        return {"scale": self._scale.item(), "steps": int(self._steps.item())} if self.on else {}

    def load(self, state: dict[str, Any]) -> None:
        """Set the scale from what `state` returned; {} changes nothing."""
        if self.on and state:
            self._scale.fill_(state["scale"])
            self._steps.fill_(state["steps"])


def exhausted(step: int, numbers: dict[str, Any]) -> str:
    """What is wrong with a step whose gradients overflow however small the loss scale is; "" when nothing is."""
    scale = numbers.get("loss_scale", LossScale.FIRST)
    return (
        f"step {step}: gradients overflow in fp16 even with a loss scale of {scale:g}"
        if scale < LossScale.LEAST
        else ""
    )
