"""Collectives that autograd knows the reverse of. Each one's backward is another one's forward.

copied (nothing)            <->  summed (all-reduce)
gathered (all-gather)       <->  scattered sum (reduce-scatter)
exchanged (all-to-all)      <->  exchanged
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

Group: TypeAlias = dist.ProcessGroup


def copied(x: Tensor, group: Group) -> Tensor:
    """x, the same on all ranks of the group, which do different things with it: its gradients are summed."""
    return _Copied.apply(x, group)


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum of all ranks' x, which all of them go on with."""
    return _Summed.apply(x, group)


def gathered(x: Tensor, dim: int, group: Group) -> Tensor:
    """All ranks' x, in the order of the ranks, along `dim`."""
    return _Gathered.apply(x, dim, group)


def scattered_sum(x: Tensor, dim: int, group: Group) -> Tensor:
    """This rank's part, along `dim`, of the sum of all ranks' x."""
    return _ScatteredSum.apply(x, dim, group)


def exchanged(x: Tensor, group: Group) -> Tensor:
    """x [n, …]: x[i] goes to rank i of the n ranks; what comes back at i is from rank i."""
    return _Exchanged.apply(x, group)


def all_gather(x: Tensor, dim: int, group: Group) -> Tensor:
    """Without autograd."""
    n = group.size()
    whole = x.new_empty((n * x.shape[0], *x.shape[1:]))
    dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
    return whole if dim == 0 else whole.unflatten(0, (n, x.shape[0])).movedim(0, dim).flatten(dim, dim + 1)


def reduce_scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    """Without autograd."""
    n = group.size()
    parts = x.unflatten(dim, (n, x.shape[dim] // n)).movedim(dim, 0).contiguous()
    own = torch.empty_like(parts[0])
    dist.reduce_scatter_tensor(own, parts.flatten(0, 1), group=group)
    return own


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """Without autograd, into a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def all_to_all(x: Tensor, group: Group) -> Tensor:
    """Without autograd."""
    received = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, x.contiguous(), group=group)
    return received


class _Copied(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grad, ctx.group), None


class _Summed(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Gathered(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return all_gather(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return reduce_scatter(grad, ctx.dim, ctx.group), None, None


class _ScatteredSum(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return reduce_scatter(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return all_gather(grad, ctx.dim, ctx.group), None, None


class _Exchanged(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return all_to_all(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_to_all(grad, ctx.group), None
