"""Sharded data parallelism (FSDP2), with replicas of the shards where dp_replicate > 1 (HSDP)."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from trainmaster.contract.config import TrainingConfig
from trainmaster.parallel.gradients import sum_gradients
from trainmaster.precision import policies


def apply(model: nn.Module, mesh: DeviceMesh, config: TrainingConfig) -> nn.Module:
    """Shard `model` over the axis dp_shard, block by block: one block's parameters are whole at a time."""
    axes = mesh if mesh["dp_replicate"].size() > 1 else mesh["dp_shard"]
    of_block, of_model = policies(config.precision)
    for block in model.blocks:
        fully_shard(block, mesh=axes, mp_policy=of_block)
    # The root's own parameters (embedding, head) are needed from the first to the last operation of a step.
    fully_shard(model, mesh=axes, mp_policy=of_model, reshard_after_forward=False)
    sum_gradients(model)
    return model
