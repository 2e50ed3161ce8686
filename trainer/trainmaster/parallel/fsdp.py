"""Sharded data parallelism (FSDP2), with replicas of the shards where the mesh has two dimensions (HSDP)."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

from trainmaster.contract.config import ShardingConfig
from trainmaster.parallel.blocks.precision import policies
from trainmaster.parallel.collectives import Gathering, Scattering
from trainmaster.parallel.gradient_reduction import sum_gradients


def apply(
    model: nn.Module,
    blocks: Iterable[nn.Module],
    mesh: DeviceMesh,
    config: ShardingConfig,
    precision: str,
    *,
    keep_whole: bool,
    casts: bool,
) -> nn.Module:
    """Shard `model` over the last dimension of `mesh`, block by block, and return it. One block is gathered at a time.

    With `keep_whole`, parameters stay gathered from the forward to the backward pass at every stage of ZeRO. With
    `casts`, the output is cast to fp32.
    """
    of_block, of_model = policies(precision, casts)
    offload = _offload(config, mesh)
    reshard = config.stage == 3 and not keep_whole
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=of_block, offload_policy=offload, reshard_after_forward=reshard)
    # The root's own parameters (embedding, head) are needed from the first to the last operation of a step.
    fully_shard(model, mesh=mesh, mp_policy=of_model, offload_policy=offload, reshard_after_forward=False)
    _communicate(model, mesh)
    return model


def experts(
    modules: Iterable[nn.Module], mesh: DeviceMesh, config: ShardingConfig, precision: str, *, keep_whole: bool
) -> None:
    """Shard experts, which were divided among ranks before, over the last dimension of `mesh`.

    Call it before the blocks that contain them are sharded.
    """
    policy, _ = policies(precision)
    n = mesh.size(mesh.ndim - 1)
    for module in modules:
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=policy,
            offload_policy=_offload(config, mesh),
            reshard_after_forward=config.stage == 3 and not keep_whole,
            # Whole experts if there are enough, else a part of each.
            shard_placement_fn=lambda parameter: Shard(0 if parameter.to_local().shape[0] % n == 0 else 1),
        )
        _communicate(module, mesh)


def _communicate(model: nn.Module, mesh: DeviceMesh) -> None:
    sum_gradients(model)
    if mesh.device_type == "cpu":
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(Gathering())
                module.set_custom_reduce_scatter(Scattering())


def _offload(config: ShardingConfig, mesh: DeviceMesh) -> OffloadPolicy:
    return CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if config.offload else OffloadPolicy()
