"""Data parallelism of parameters that are cast (bf16), or that tensor parallelism has split: gradients are summed.

`replicate` reduces one group of parameters per block, in the same order in each step. For plain fp32 see `replicas`.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh

from trainmaster.parallel.blocks.precision import policies
from trainmaster.parallel.gradient_reduction import sum_gradients


def apply(model: nn.Module, blocks: Iterable[nn.Module], mesh: DeviceMesh, precision: str, casts: bool) -> nn.Module:
    """Replicate `model` over `mesh` (one-dimensional), one reduction per block and one for the rest.

    `casts`: its output to fp32, whatever the precision.
    """
    of_block, of_model = policies(precision, casts)
    for block in blocks:
        replicate(block, mesh=mesh, mp_policy=of_block)
    replicate(model, mesh=mesh, mp_policy=of_model)
    sum_gradients(model)
    return model
