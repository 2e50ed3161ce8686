"""Collectives that autograd knows the reverse of. Each one's backward is another one's forward.

copied (nothing)            <->  summed (all-reduce)
gathered (all-gather)       <->  scattered sum (reduce-scatter)
exchanged (all-to-all)      <->  exchanged

On CPU an all-to-all does the work of the others where it is quicker: gloo's sums are rings of many small messages, and
its reduce-scatter is an all-reduce that leaves out the rest. With two ranks on a machine a sum of 64 KiB takes 0.4 ms
instead of 2, and a reduce-scatter of 1 MiB 0.8 ms instead of 2.8. Sums are in the order of the ranks then, with the
same bits on each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

Group: TypeAlias = dist.ProcessGroup

_FEW = 1 << 21  # bytes, for all others together, that are quicker sent to each of them than round a ring


def copied(x: Tensor, group: Group) -> Tensor:
    """x, the same on all ranks of the group, which do different things with it: its gradients are summed."""
    return _Copied.apply(x, group)


def summed(x: Tensor, group: Group) -> Tensor:
    """Return the sum of all ranks' x, which all of them go on with."""
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
    all_gather_(whole, x.contiguous(), group)
    return whole if dim == 0 else whole.unflatten(0, (n, x.shape[0])).movedim(0, dim).flatten(dim, dim + 1)


def reduce_scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    """Without autograd."""
    n = group.size()
    parts = x.unflatten(dim, (n, x.shape[dim] // n)).movedim(dim, 0).contiguous()
    own = torch.empty_like(parts[0])
    reduce_scatter_(own, parts, group)
    return own


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """Without autograd, into a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    all_reduce_(total, group)
    return total


def all_to_all(x: Tensor, group: Group) -> Tensor:
    """Without autograd."""
    received = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, x.contiguous(), group=group)
    return received


def exchange_rows(x: Tensor, leaving: list[int], arriving: list[int], group: Group | None) -> Tensor:
    """Without autograd: x [sum(leaving), …] goes to the ranks in turn, so many rows to each; what comes back is from
    the ranks in turn, so many rows from each."""
    received = x.new_empty((sum(arriving), *x.shape[1:]))
    dist.all_to_all_single(received, x.contiguous(), arriving, leaving, group=group)
    return received


def all_reduce_(x: Tensor, group: Group | None = None, *, highest: bool = False) -> None:
    """x, contiguous, becomes the sum of all ranks' x (`highest`: the maximum, element by element).

    No rank passes before all of the group have come. `group`: all ranks if None.
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
    """whole, contiguous, becomes all ranks' `own` (contiguous) in the order of the ranks; `own` may lie within it."""
    n = group.size()
    if _is_quicker_sent(own, n, group):
        for part, theirs in zip(whole.view(n, -1), _from_all(own.view(-1), n, group), strict=True):
            if part.data_ptr() != theirs.data_ptr():
                part.copy_(theirs)
    else:
        dist.all_gather_into_tensor(whole, own, group=group)


def reduce_scatter_(own: Tensor, parts: Tensor, group: Group) -> None:
    """own becomes the sum of what all ranks have for this one: `parts`, contiguous, in the order of the ranks."""
    if parts.numel() and _is_gloo(parts, group):
        received = parts.new_empty((group.size(), own.numel()))
        dist.all_to_all_single(received, parts.view_as(received), group=group)
        torch.sum(received, 0, out=own.view(-1))
    else:
        dist.reduce_scatter_tensor(own, parts.view(-1, *own.shape[1:]), group=group)


def _is_gloo(x: Tensor, group: Group | None) -> bool:
    """Not so for the groups that a plan is made with: it counts what other backends send."""
    return x.is_cpu and bool(dist.get_backend(group) == "gloo")


def _is_quicker_sent(x: Tensor, n: int, group: Group | None) -> bool:
    """To each of the others of n ranks."""
    return n > 1 and 0 < x.nbytes * (n - 1) <= _FEW and _is_gloo(x, group)


def _from_all(x: Tensor, n: int, group: Group | None) -> list[Tensor]:
    """Each rank's x [elements]; ours is x itself."""
    own = dist.get_rank(group)
    sizes = [x.numel()] * n
    sizes[own] = 0
    received = exchange_rows(x if n == 2 else x.repeat(n - 1), sizes, sizes, group)
    every = list(received.view(n - 1, -1))
    every.insert(own, x)
    return every


class _Allocates:
    """What FSDP asks of both."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class Gathering(_Allocates):
    """How FSDP gathers a block's parameters."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Group, async_op: bool = False
    ) -> dist.Work | None:
        if async_op:
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=True)
        all_gather_(output_tensor, input_tensor, group)
        return None


class Scattering(_Allocates):
    """How FSDP sums a block's gradients; always by sums (see `gradients.sum_gradients`)."""

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
