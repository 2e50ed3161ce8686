"""Work on whole matrices of which each rank has a part.

Each whole is put together on one rank, the next one on the next rank, so that ranks share the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainmaster.parallel.collectives import Group, exchange_rows

T = TypeVar("T")


@dataclass(frozen=True)
class Hop:
    """The ranks that have the parts of a tensor along one dim."""

    group: Group
    dim: int
    sizes: tuple[int, ...]  # sizes of the parts along the dim


def hops(tensor: Tensor, apart: int | None = None) -> Iterator[Hop]:
    """Yield the order in which the parts of `tensor` are joined: the dim that was divided last comes first.

    `apart` is a dim whose parts are not joined.
    """
    if not isinstance(tensor, DTensor):
        return
    found, shape = [], list(tensor.shape)
    mesh = tensor.device_mesh
    # Inner axes of a mesh have cut first, and outer ones what these left.
    for axis in reversed(range(mesh.ndim)):
        dim = getattr(tensor.placements[axis], "dim", None)  # strided shards are no `Shard`
        n = mesh.size(axis)
        if dim is None or n == 1:
            continue
        each = -(-shape[dim] // n)  # as `torch.chunk` has it
        sizes = tuple(min(each, max(0, shape[dim] - i * each)) for i in range(n))
        shape[dim] = sizes[mesh.get_local_rank(axis)]
        if dim != apart:
            found.append(Hop(mesh.get_group(axis), dim, sizes))
    yield from reversed(found)


def batches(things: Iterable[T], kind: Callable[[T], tuple[Hashable, tuple[Hop, ...]]]) -> Iterator[list[T]]:
    """Yield lists of things of the same kind, with one thing for each rank that has parts of them.

    `kind` returns (what they have in common, their hops).
    """
    alike: dict[tuple[Hashable, tuple[Hop, ...]], list[T]] = {}
    for thing in things:
        alike.setdefault(kind(thing), []).append(thing)
    for (_, over), found in alike.items():
        count = math.prod(len(hop.sizes) for hop in over)
        yield from (found[i : i + count] for i in range(0, len(found), count))


def on_wholes(parts: Sequence[Tensor], over: Sequence[Hop], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Apply `work` to whole tensors, and return this rank's parts of the results.

    `parts` are this rank's parts of tensors of the same shape. All ranks that have parts of them call this in the same
    order. Each whole is put together on one rank, and `work` must keep its shape.
    """
    if not over or not parts:  # with fewer tensors than ranks of a hop, the last of these ranks get none
        return [work(part) for part in parts]
    hop, rest = over[0], over[1:]
    return _dealt_back(on_wholes(_dealt(parts, hop), rest, work), parts, hop)


def _dealt(parts: Sequence[Tensor], hop: Hop) -> list[Tensor]:
    """Send the parts of the first tensor to the first rank, those of the next to the next, and so on.

    Return the tensors that this rank gets, joined.
    """
    n, me = len(hop.sizes), hop.group.rank()
    like, mine = parts[0], len(range(me, len(parts), n))
    sent = torch.cat([part.flatten() for rank in range(n) for part in parts[rank::n]])
    leaving = [len(range(rank, len(parts), n)) * like.numel() for rank in range(n)]
    shapes = [_with(like, hop.dim, size) for size in hop.sizes]
    arriving = [mine * math.prod(shape) for shape in shapes]
    received = exchange_rows(sent, leaving, arriving, hop.group)
    pieces = [piece.view(mine, *shape) for piece, shape in zip(received.split(arriving), shapes, strict=True)]
    return [*torch.cat(pieces, hop.dim + 1)]


def _dealt_back(wholes: Sequence[Tensor], parts: Sequence[Tensor], hop: Hop) -> list[Tensor]:
    n, like = len(hop.sizes), parts[0]
    leaving = [len(wholes) * math.prod(_with(like, hop.dim, size)) for size in hop.sizes]
    arriving = [len(range(rank, len(parts), n)) * like.numel() for rank in range(n)]
    pieces = [whole.split(hop.sizes, hop.dim) for whole in wholes]
    sent = torch.cat([like.new_empty(0), *(piece[rank].flatten() for rank in range(n) for piece in pieces)])
    received = iter(exchange_rows(sent, leaving, arriving, hop.group).split(arriving))
    found: list[Any] = [None] * len(parts)
    for rank in range(n):
        for index, part in zip(range(rank, len(parts), n), next(received).view(-1, *like.shape), strict=True):
            found[index] = part
    return found


def _with(like: Tensor, dim: int, size: int) -> tuple[int, ...]:
    return (*like.shape[:dim], size, *like.shape[dim + 1 :])
