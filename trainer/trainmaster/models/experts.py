"""The experts of a mixture. Shapes as in `moe`. It imports no model, because expert parallelism uses it, too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Experts(nn.Module):  # type: ignore[misc]
    """E MLPs with SwiGLU. gate and up are [E, F, W], down is [E, W, F]."""

    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(experts, hidden, width))
        self.up = nn.Parameter(torch.empty(experts, hidden, width))
        self.down = nn.Parameter(torch.empty(experts, width, hidden))

    def forward(self, x: Tensor, choices: Tensor, weights: Tensor) -> Tensor:
        """Return [N, W]: for each token of x [N, W], the sum of its experts `choices` [N, k], weighted by `weights` [N,
        k]."""
        order, counts = by_expert(choices, self.gate.shape[0])
        y = self.compute(x[order // choices.shape[1]], counts.tolist())
        return combined(y, order, weights)

    def compute(self, x: Tensor, counts: list[int]) -> Tensor:
        """Return [M, W]: the first counts[0] rows of x [M, W] through expert 0, the next ones through expert 1, and so
        on."""
        return torch.cat(
            [
                F.linear(F.silu(F.linear(part, gate)) * F.linear(part, up), down)
                for part, gate, up, down in zip(x.split(counts), self.gate, self.up, self.down, strict=True)
            ]
        )


def by_expert(choices: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Return (order [N k], which sorts the flat choices by expert; the number of choices of each expert [E])."""
    flat = choices.flatten()
    return flat.argsort(stable=True), torch.bincount(flat, minlength=experts)


def combined(y: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum [N, W] of each token's outputs y [N k, W], which are sorted by expert."""
    unsorted = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return (y[unsorted].unflatten(0, weights.shape) * weights.unsqueeze(-1)).sum(1)
