"""Gradients of a parallelized model: how they are reduced, their norm, their scale.

Parameters are DTensors or plain tensors (a model that was not parallelized).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainmaster.parallel.mesh import Mesh
from trainmaster.parallel.replicas import Replicas

if TYPE_CHECKING:
    from trainmaster.reduce.reducer import Reducer


def sum_gradients(model: nn.Module) -> None:
    """Reduce by sums, never by averages. `replicate` and HSDP obey too.

    A factor of 1 alone asks for PREMUL_SUM, a kind of reduction that not every backend has; forced sums are the same.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


class GradientSync:
    """When micro-batches of a step communicate. A pipeline's schedule decides that itself."""

    def __init__(
        self,
        roots: Sequence[nn.Module],
        mesh: Mesh,
        stage: int,
        replicas: Replicas | None,
        reducer: Reducer | None = None,
    ) -> None:
        """`stage`: of ZeRO."""
        self.replicas, self.reducer = replicas, reducer
        self._roots = [root for root in roots if isinstance(root, FSDPModule)]
        # Gradients that are whole on each rank anyway are reduced once; shards of them as soon as they are there, so
        # that no rank ever holds all of them.
        self._once = not mesh.is_sharded or stage == 1
        self._replicated = mesh.is_sharded and mesh.degree("dpReplicate") > 1 and reducer is None
        self._gathers_once = mesh.is_sharded and stage < 3

    def before(self, last: bool) -> None:
        """Call before each micro-batch's forward."""
        if self.replicas is not None:
            self.replicas.on = last
        for root in self._roots:
            root.set_is_last_backward(last)
            if self._once:
                root.set_requires_gradient_sync(last)
            elif self._replicated:
                root.set_requires_all_reduce(last)
            if self._gathers_once:
                root.set_reshard_after_backward(last)

    def before_pipeline(self) -> None:
        """Call before a pipeline's micro-batches: none of them communicates gradients of replicas."""
        if self.replicas is not None:
            self.replicas.prepare()

    def after_pipeline(self) -> None:
        """Call after them."""
        if self.replicas is not None:
            self.replicas.finish()

    def reshard(self) -> None:
        """Call after forward passes that no backward pass follows."""
        for root in self._roots:
            for module in root.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def after(self) -> None:
        """Call after all of a step's micro-batches."""
        if self.reducer is not None:
            self.reducer.reduce()


def local_gradients(model: nn.Module) -> list[Tensor]:
    """This rank's part of each gradient, in the order of the parameters; those without one are left out."""
    gradients = (parameter.grad for parameter in model.parameters())
    with torch.no_grad():  # else `to_local` is recorded for autograd
        return [g.to_local() if isinstance(g, DTensor) else g for g in gradients if g is not None]


def gradient_norm_squared(model: nn.Module) -> Tensor:
    """This rank's summand, a fp32 scalar, of the squared global gradient norm.

    Summed over all ranks (one all-reduce) it is the squared norm: what is replicated is counted once, by the replica
    at coordinate 0 (where its mesh doesn't tell, `model.counts` does). The others multiply by 0, not to nothing: NaN
    and infinity on any rank still reach the sum.
    """
    if (joined := _joined(model)) is not None:
        norms = torch.stack(torch._foreach_norm(joined, 2.0)).float()
        return float(model.counts) * norms.square().sum()
    groups: dict[float, list[Tensor]] = {}
    weights: dict[Any, float] = {}  # most gradients lie alike
    plain = float(getattr(model, "counts", True))  # where replicas are no part of the mesh that a gradient knows
    total = torch.zeros((), device=next(model.parameters()).device)
    with torch.no_grad():
        for parameter in model.parameters():
            gradient = parameter.grad
            if isinstance(gradient, DTensor):
                lies = (id(gradient.device_mesh), gradient.placements)
                if lies not in weights:
                    weights[lies] = plain * _weight(gradient)
                groups.setdefault(weights[lies], []).append(gradient.to_local())
            elif gradient is not None:
                groups.setdefault(plain, []).append(gradient)
        for weight, gradients in groups.items():
            norms = torch.stack(torch._foreach_norm(gradients, 2.0)).float()
            total = total + weight * norms.square().sum()
    return total


def _joined(model: nn.Module) -> list[Tensor] | None:
    """Gradients of plain replicas lie one beside the other: the same in fewer, or less uneven, pieces."""
    replicas: Replicas | None = getattr(model, "replicas", None)
    return None if replicas is None else replicas.gradients()


def _weight(gradient: DTensor) -> float:
    """1 where this rank is the one that counts this shard, 0 on its other replicas."""
    mesh = gradient.device_mesh
    replicas = (axis for axis, placement in enumerate(gradient.placements) if placement.is_replicate())
    return float(all(mesh.get_local_rank(axis) == 0 for axis in replicas))


def scale_gradients_(model: nn.Module, factor: Tensor | float) -> None:
    """Multiply all gradients in place, as clipping does. No communication."""
    gradients = _joined(model) or local_gradients(model)
    if gradients:
        if isinstance(factor, Tensor):
            factor = factor.to(gradients[0].device)  # gradients of offloaded shards lie in host memory
        with torch.no_grad():
            torch._foreach_mul_(gradients, factor)
