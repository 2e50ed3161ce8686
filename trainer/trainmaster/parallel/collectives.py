"""Collectives that autograd can differentiate. The backward of each one is the forward of another one.

copied (nothing)            <->  summed (all-reduce)
gathered (all-gather)       <->  scattered sum (reduce-scatter)
exchanged (all-to-all)      <->  exchanged

On CPU an all-to-all replaces the others where it is faster: gloo's sums are rings of many small messages, and its
reduce-scatter is an all-reduce that ignores the rest. With two ranks on one machine a sum of 64 KiB takes 0.4 ms
instead of 2, and a reduce-scatter of 1 MiB 0.8 ms instead of 2.8. These sums are added in the order of the ranks, with
the same bits on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

Group: TypeAlias = dist.ProcessGroup

_FEW = 1 << 21  # bytes to all other ranks together, up to which direct messages are faster than a ring


def copied(x: Tensor, group: Group) -> Tensor:
    """Return x. In the backward pass, sum its gradients over the ranks of the group.

    x is the same on all ranks, and each rank computes something different with it.
    """
    return _Copied.apply(x, group)


def summed(x: Tensor, group: Group) -> Tensor:
    """Return the sum of x over the ranks of the group. All ranks continue with the same sum."""
    return _Summed.apply(x, group)


def gathered(x: Tensor, dim: int, group: Group) -> Tensor:
    """Return the x of all ranks, concatenated along `dim` in the order of the ranks."""
    return _Gathered.apply(x, dim, group)


def scattered_sum(x: Tensor, dim: int, group: Group) -> Tensor:
    """Return this rank's part, along `dim`, of the sum of x over all ranks."""
    return _ScatteredSum.apply(x, dim, group)


def exchanged(x: Tensor, group: Group) -> Tensor:
    """Send x[i] of x [n, …] to rank i of the n ranks, and return [n, …], whose element i comes from rank i."""
    return _Exchanged.apply(x, group)


def all_gather(x: Tensor, dim: int, group: Group) -> Tensor:
    """Return the x of all ranks, concatenated along `dim` in the order of the ranks, without autograd."""
    n = group.size()
    whole = x.new_empty((n * x.shape[0], *x.shape[1:]))
    all_gather_(whole, x.contiguous(), group)
    return whole if dim == 0 else whole.unflatten(0, (n, x.shape[0])).movedim(0, dim).flatten(dim, dim + 1)


def reduce_scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    """Return this rank's part, along `dim`, of the sum of x over all ranks, without autograd."""
    n = group.size()
    parts = x.unflatten(dim, (n, x.shape[dim] // n)).movedim(dim, 0).contiguous()
    own = torch.empty_like(parts[0])
    reduce_scatter_(own, parts, group)
    return own


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """Return the sum of x over all ranks as a new tensor, without autograd."""
    total = x.clone(memory_format=torch.contiguous_format)
    all_reduce_(total, group)
    return total


def all_to_all(x: Tensor, group: Group) -> Tensor:
    """Send x[i] to rank i, and return what the ranks have sent to this one, without autograd."""
    received = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, x.contiguous(), group=group)
    return received


def exchange_rows(x: Tensor, leaving: list[int], arriving: list[int], group: Group | None) -> Tensor:
    """Send the first leaving[0] rows of x to rank 0, the next leaving[1] to rank 1, and so on, without autograd.

    x is [sum(leaving), …]. The result is [sum(arriving), …], with arriving[i] rows from rank i, in the order of the
    ranks.
    """
    received = x.new_empty((sum(arriving), *x.shape[1:]))
    dist.all_to_all_single(received, x.contiguous(), arriving, leaving, group=group)
    return received


def all_reduce_(x: Tensor, group: Group | None = None, *, highest: bool = False) -> None:
    """Replace x, which is contiguous, by its sum over all ranks, or by its maximum if `highest` is true.

    No rank returns before all ranks of the group have called it. `group` None means all ranks.
    """
    n = dist.get_world_size(group)
    if _is_quicker_sent(x, n, group):
        every = _from_all(x.view(-1), n, group)
        combine = torch.maximum if highest else torch.add
        total = combine(every[0], every[1])
        for other in every[2:]:
            combine(total, other, out=total)
        x.copy_(total.view_as(x))
    else:
        dist.all_reduce(x, dist.ReduceOp.MAX if highest else dist.ReduceOp.SUM, group=group)


def all_gather_(whole: Tensor, own: Tensor, group: Group) -> None:
    """Fill `whole` with `own` of all ranks, in the order of the ranks. Both are contiguous; `own` may be part of
    `whole`."""
    n = group.size()
    if _is_quicker_sent(own, n, group):
        for part, theirs in zip(whole.view(n, -1), _from_all(own.view(-1), n, group), strict=True):
            if part.data_ptr() != theirs.data_ptr():
                part.copy_(theirs)
    else:
        dist.all_gather_into_tensor(whole, own, group=group)


def reduce_scatter_(own: Tensor, parts: Tensor, group: Group) -> None:
    """Fill `own` with the sum over all ranks of their part for this rank. `parts` [n, …] is contiguous."""
    if parts.numel() and _is_gloo(parts, group):
        received = parts.new_empty((group.size(), own.numel()))
        dist.all_to_all_single(received, parts.view_as(received), group=group)
        torch.sum(received, 0, out=own.view(-1))
    else:
        dist.reduce_scatter_tensor(own, parts.view(-1, *own.shape[1:]), group=group)


def _is_gloo(x: Tensor, group: Group | None) -> bool:
    """Return True if the group's backend is gloo. A plan uses other groups, which count what other backends send."""
    return x.is_cpu and bool(dist.get_backend(group) == "gloo")


def _is_quicker_sent(x: Tensor, n: int, group: Group | None) -> bool:
    """Return True if it is faster to send x to each of the other n - 1 ranks than to use gloo's own collective."""
    return n > 1 and 0 < x.nbytes * (n - 1) <= _FEW and _is_gloo(x, group)


def _from_all(x: Tensor, n: int, group: Group | None) -> list[Tensor]:
    """Return x [elements] of each rank in the order of the ranks; this rank's own is x itself."""
    own = dist.get_rank(group)
    sizes = [x.numel()] * n
    sizes[own] = 0
    received = exchange_rows(x if n == 2 else x.repeat(n - 1), sizes, sizes, group)
    every = list(received.view(n - 1, -1))
    every.insert(own, x)
    return every


class _Allocates:
    """The method that FSDP needs of a custom all-gather and of a custom reduce-scatter."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class Gathering(_Allocates):
    """A custom all-gather, with which FSDP gathers the parameters of a block."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Group, async_op: bool = False
    ) -> dist.Work | None:
        if async_op:
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=True)
        all_gather_(output_tensor, input_tensor, group)
        return None


class Scattering(_Allocates):
    """A custom reduce-scatter, with which FSDP sums the gradients of a block (see `gradients.sum_gradients`)."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Group,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        assert op == dist.ReduceOp.SUM, op
        assert not async_op
        reduce_scatter_(output_tensor, input_tensor, group)


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
