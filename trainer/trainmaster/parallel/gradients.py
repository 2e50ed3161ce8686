"""Gradients of a parallelized model: how they are reduced, their norm, and their scale.

Parameters are DTensors, or plain tensors if the model was not parallelized.
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
    """Let FSDP, HSDP and `replicate` reduce gradients by sums, never by averages.

    A divide factor of 1 alone would use PREMUL_SUM, which not every backend has; forced sums give the same result.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


class GradientSync:
    """Which micro-batches of a step communicate. In a pipeline its schedule decides that."""

    def __init__(
        self,
        roots: Sequence[nn.Module],
        mesh: Mesh,
        stage: int,
        replicas: Replicas | None,
        reducer: Reducer | None = None,
    ) -> None:
        """`stage` is the stage of ZeRO."""
        self.replicas, self.reducer = replicas, reducer
        self._roots = [root for root in roots if isinstance(root, FSDPModule)]
        # Gradients that are whole on each rank are reduced once per step. Sharded ones are reduced at once, so that no
        # rank ever holds all of them.
        self._once = not mesh.is_sharded or stage == 1
        self._replicated = mesh.is_sharded and mesh.degree("dpReplicate") > 1 and reducer is None
        self._gathers_once = mesh.is_sharded and stage < 3

    def before(self, last: bool) -> None:
        """Prepare the next micro-batch. Call it before each forward pass; `last` is true for the last micro-batch."""
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
        """Prepare the micro-batches of a pipeline, none of which communicates gradients of replicas."""
        if self.replicas is not None:
            self.replicas.prepare()

    def after_pipeline(self) -> None:
        """Sum the gradients of replicas. Call it after all micro-batches of a pipeline."""
        if self.replicas is not None:
            self.replicas.finish()

    def reshard(self) -> None:
        """Release gathered parameters. Call it after forward passes without a backward pass."""
        for root in self._roots:
            for module in root.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def after(self) -> None:
        """Sum compressed gradients. Call it after all micro-batches of a step."""
        if self.reducer is not None:
            self.reducer.reduce()


def local_gradients(model: nn.Module) -> list[Tensor]:
    """Return this rank's part of each gradient in the order of the parameters, without parameters that have none."""
    gradients = (parameter.grad for parameter in model.parameters())
    with torch.no_grad():  # else `to_local` is recorded for autograd
        return [g.to_local() if isinstance(g, DTensor) else g for g in gradients if g is not None]


def gradient_norm_squared(model: nn.Module) -> Tensor:
    """Return this rank's summand of the squared norm of all gradients, a scalar in fp32.

    The sum over all ranks (one all-reduce) is the squared norm. A replicated gradient is counted once, by the replica
    at coordinate 0, or by the rank for which `model.counts` is true if its mesh has no axis of replicas. The other
    ranks multiply by 0, so that NaN and infinity on any rank still reach the sum.
    """
    if (joined := _joined(model)) is not None:
        norms = torch.stack(torch._foreach_norm(joined, 2.0)).float()
        return float(model.counts) * norms.square().sum()
    groups: dict[float, list[Tensor]] = {}
    weights: dict[Any, float] = {}  # most gradients have the same placements
    plain = float(getattr(model, "counts", True))  # for gradients whose mesh has no axis of replicas
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
    """Return the gradients of plain replicas as fewer and more even pieces of the memory that they lie in.

    Return None if there are no such replicas, or a gradient lies elsewhere.
    """
    replicas: Replicas | None = getattr(model, "replicas", None)
    return None if replicas is None else replicas.gradients()


def _weight(gradient: DTensor) -> float:
    """Return 1.0 if this rank counts this shard, and 0.0 if another replica of the shard does."""
    mesh = gradient.device_mesh
    replicas = (axis for axis, placement in enumerate(gradient.placements) if placement.is_replicate())
    return float(all(mesh.get_local_rank(axis) == 0 for axis in replicas))


def scale_gradients_(model: nn.Module, factor: Tensor | float) -> None:
    """Multiply all gradients in place, as clipping does. No communication is needed."""
    gradients = _joined(model) or local_gradients(model)
    if gradients:
        if isinstance(factor, Tensor):
            factor = factor.to(gradients[0].device)  # gradients of offloaded shards lie in host memory
        with torch.no_grad():
            torch._foreach_mul_(gradients, factor)
