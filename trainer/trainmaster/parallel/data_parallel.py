"""Data parallelism for parameters that are cast (bf16) or split by tensor parallelism: gradients are summed.

`replicate` reduces one group of parameters per block, in the same order in each step. Plain fp32 parameters use
`replicas`.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh

from trainmaster.parallel.blocks.precision import policies
from trainmaster.parallel.gradient_reduction import sum_gradients


def apply(model: nn.Module, blocks: Iterable[nn.Module], mesh: DeviceMesh, precision: str, casts: bool) -> nn.Module:
    """Replicate `model` over the one-dimensional `mesh`: one reduction for each block, and one for the other
    parameters.

    Return the model. With `casts`, its output is cast to fp32 in every precision.
    """
    of_block, of_model = policies(precision, casts)
    for block in blocks:
        replicate(block, mesh=mesh, mp_policy=of_block)
    replicate(model, mesh=mesh, mp_policy=of_model)
    sum_gradients(model)
    return model
