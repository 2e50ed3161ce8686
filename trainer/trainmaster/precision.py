"""Precision of the computation. Master weights, sums of gradients and optimizer state are always fp32."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy


def policies(precision: str, casts: bool = True) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy]:
    """(of a block, of the whole model). bf16 casts parameters for the computation and reduces gradients in fp32."""
    if precision == "fp32":
        return MixedPrecisionPolicy(), MixedPrecisionPolicy()
    assert precision == "bf16", precision
    cast = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    # Only the model's own output is cast back: between blocks, and between stages, activations stay bf16.
    return MixedPrecisionPolicy(**cast), MixedPrecisionPolicy(**cast, output_dtype=torch.float32 if casts else None)
