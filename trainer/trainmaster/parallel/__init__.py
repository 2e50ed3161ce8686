"""Parallelism strategies, one verb each: `apply(model, mesh, config)`.

Whatever the strategy, a gradient is the SUM over all ranks: the loss is divided by the valid tokens of the whole
step, so no strategy divides by its number of ranks.
"""

from __future__ import annotations

import torch._dynamo  # noqa: F401  fully_shard imports it when first called: seconds that belong before a fork
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainmaster.contract.config import TrainingConfig
from trainmaster.parallel import data, shard
from trainmaster.parallel.elementwise import elementwise
from trainmaster.parallel.gradients import (
    gradient_norm_squared,
    local_gradients,
    scale_gradients_,
    set_gradient_sync,
)

__all__ = [
    "AXES",
    "elementwise",
    "gradient_norm_squared",
    "local_gradients",
    "make_mesh",
    "parallelize",
    "scale_gradients_",
    "set_gradient_sync",
]

AXES = ("dp_replicate", "dp_shard")  # outermost first: the inner axis gets neighbouring ranks


def make_mesh(mesh: dict[str, int], device_type: str) -> DeviceMesh:
    """The device mesh of all ranks; an axis that `mesh` leaves out has degree 1. Needs the default process group."""
    assert set(mesh) <= set(AXES), f"{sorted(set(mesh) - set(AXES))} are no axes of the mesh"
    return init_device_mesh(device_type, tuple(mesh.get(axis, 1) for axis in AXES), mesh_dim_names=AXES)


def parallelize(model: nn.Module, mesh: DeviceMesh, config: TrainingConfig) -> nn.Module:
    """Turn `model` (with its whole initial weights, on its device) into the part of it that this rank trains.

    The same module comes back: its parameters are DTensors now, and their gradients sums over all ranks.
    """
    # Parameters become DTensors by `detach` alone, which needs no plan: this halves the time it takes.
    with elementwise():
        # With one shard there is nothing to gather, so the parameters stay whole and only gradients travel.
        if mesh["dp_shard"].size() == 1:
            return data.apply(model, mesh, config)

        # Shards, and with dp_replicate > 1 replicas of these shards (HSDP): one reduce-scatter within the shard
        # group, one all-reduce of the result across replicas.
        return shard.apply(model, mesh, config)
