"""The norm of a parallelized model's gradients, and their scale, as clipping needs them.

Parameters are DTensors or plain tensors (a model that was not parallelized).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainmaster.parallel.gradient_buckets import Replicas


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


def clip_factor(norm: Tensor, limit: float) -> Tensor:
    """Return the factor in fp32 that scales gradients with this norm to a norm of at most `limit`."""
    return (limit / (norm + 1e-6)).clamp(max=1.0).float()


def scale_gradients_(model: nn.Module, factor: Tensor | float) -> None:
    """Multiply all gradients in place, as clipping does. No communication is needed."""
    gradients = _joined(model) or local_gradients(model)
    if gradients:
        if isinstance(factor, Tensor):
            factor = factor.to(gradients[0].device)  # gradients of offloaded shards lie in host memory
        with torch.no_grad():
            torch._foreach_mul_(gradients, factor)
