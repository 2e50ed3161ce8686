"""Expert parallelism: each rank has some experts, and tokens are sent to the ranks of their experts.

Lepikhin et al. (GShard), arXiv 2006.16668.

The experts are divided among dpShard x cp ranks, which have different tokens anyway, so no token is computed twice. The
gradient of an expert is complete, for the tokens of its ep group, on the rank that has it; it is summed over the other
groups only, for which there is a second mesh.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from trainmaster.errors import ConfigError
from trainmaster.models.experts import by_expert, combined
from trainmaster.parallel.collectives import Group, all_to_all, exchange_rows
from trainmaster.parallel.model_plan import named, plan_of
from trainmaster.parallel.tensor_parallel import EXPERT_SPLITS, Forward, dealt, local, rebase


def apply(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """Divide the experts of each layer over axis ep of `mesh`, and split each expert over axis tp if the mesh has it.

    Return the modules of the experts. Raises ConfigError if the model's plan names no experts.
    """
    if not plan_of(model).experts:
        raise ConfigError(
            f"parallelism.ep: model {type(model).__name__} declares no experts (plan.experts); only ep 1 would do"
        )
    assert mesh.mesh_dim_names is not None
    found = list(named(model, plan_of(model).experts))
    for path, experts in found:
        for name, parameter in list(experts._parameters.items()):
            if parameter is not None:
                placements = [Shard(0) if axis == "ep" else EXPERT_SPLITS[name] for axis in mesh.mesh_dim_names]
                experts._parameters[name] = dealt(parameter, mesh, placements, f"{path}.{name}")
        rebase(experts, _travelling(mesh.get_group("ep")), local)
    return [experts for _, experts in found]


def _travelling(group: Group) -> Forward:
    def forward(module: Any, x: Tensor, choices: Tensor, weights: Tensor) -> Tensor:
        n, own = group.size(), module.gate.shape[0]
        order, counts = by_expert(choices, n * own)
        sent = counts.view(n, own)
        received = all_to_all(sent, group)
        # The sizes of what travels are needed on the host: one wait for the device.
        sizes = torch.cat([sent.sum(1), received.sum(1), received.sum(0)]).tolist()
        leaving, arriving, per_expert = sizes[:n], sizes[n : 2 * n], sizes[2 * n :]
        x = _Travelled.apply(x[order // choices.shape[1]], leaving, arriving, group)
        # What arrives is sorted by where it is from, then by expert.
        experts = torch.arange(own, device=x.device).repeat(n).repeat_interleave(received.flatten())
        by_own_expert = experts.argsort(stable=True)
        y = module.compute(x[by_own_expert], per_expert)
        y = torch.empty_like(y).index_copy(0, by_own_expert, y)
        return combined(_Travelled.apply(y, arriving, leaving, group), order, weights)

    return forward


class _Travelled(torch.autograd.Function):  # type: ignore[misc]
    """Rows of x [M, W] that are sent to other ranks: the first leaving[0] to rank 0, and so on; arriving[i] from rank
    i."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leaving: list[int], arriving: list[int], group: Group) -> Tensor:
        ctx.leaving, ctx.arriving, ctx.group = leaving, arriving, group
        return exchange_rows(x, leaving, arriving, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return exchange_rows(grad, ctx.arriving, ctx.leaving, ctx.group), None, None, None
