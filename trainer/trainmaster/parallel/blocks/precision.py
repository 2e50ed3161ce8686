"""The precision of the computation. Master weights, sums of gradients and optimizer state are always in fp32."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""The dtype of the activations of blocks. With fp8, only matrix products compute in 8 bits (see `float8`)."""


def policies(precision: str, casts: bool = True) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy]:
    """Return the policies (of a block, of the whole model).

    Parameters are cast to the precision for the computation, and gradients are reduced in fp32. With `casts`, the
    output of the model is cast to fp32.
    """
    if precision == "fp32":
        return MixedPrecisionPolicy(), MixedPrecisionPolicy()
    cast = {"param_dtype": DTYPES[precision], "reduce_dtype": torch.float32}
    # Only the model's own output is cast back: between blocks, and between stages, activations stay as they are.
    return MixedPrecisionPolicy(**cast), MixedPrecisionPolicy(**cast, output_dtype=torch.float32 if casts else None)
