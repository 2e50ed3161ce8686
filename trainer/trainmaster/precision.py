"""Precision of the computation. Master weights, gradients' sums and optimizer state are always fp32."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy


def policy(precision: str) -> MixedPrecisionPolicy:
    """fp32 as it is; bf16 casts parameters for the computation and reduces gradients in fp32."""
    if precision == "bf16":
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    assert precision == "fp32", precision
    return MixedPrecisionPolicy()
