"""Data parallelism: each rank holds the whole model, gradients are summed.

Not DistributedDataParallel: it rebuilds its buckets after the first backward, so a restarted run reduces in another
order than the uninterrupted one, and differs in the last bits at three ranks or more. `replicate` reduces one group of
parameters per block, in the same order in each step.
"""

from __future__ import annotations

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh

from trainmaster.contract.config import TrainingConfig
from trainmaster.parallel.gradients import sum_gradients
from trainmaster.precision import policies


def apply(model: nn.Module, mesh: DeviceMesh, config: TrainingConfig) -> nn.Module:
    """Replicate `model` over the axis dp_replicate, one reduction per block and one for the rest."""
    replicas = mesh["dp_replicate"]
    of_block, of_model = policies(config.precision)
    for block in model.blocks:
        replicate(block, mesh=replicas, mp_policy=of_block)
    replicate(model, mesh=replicas, mp_policy=of_model)
    sum_gradients(model)
    return model
