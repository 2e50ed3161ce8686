"""Ways to sum a vector over replicas that send less than all of it.

Each sums about: what a rank's part of the sum leaves out stays behind in its own vector, so that it can be added to the
next one (error feedback: Karimireddy et al., arXiv 1901.09847). The sum is the same, to the bit, on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainmaster.reduce.compressed_size import CHUNK, chosen, of_gather, of_sum, whole_parts

PIECE = 1 << 18  # elements of each rank's part


class Wire:
    """Collectives over a group. sent: bytes that this rank has sent by them, as ring algorithms do."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.ranks = group, dist.get_world_size(group)
        self.sent = 0

    def sum_(self, tensor: Tensor) -> Tensor:
        self.sent += of_sum(tensor.nbytes, self.ranks)
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def exchange(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin: [ranks x n] of each rank, of which each gets a part: [ranks, n]."""
        self.sent += of_gather(tensor.nbytes, self.ranks) // self.ranks
        exchanged = torch.empty_like(tensor)
        work = dist.all_to_all_single(exchanged, tensor, group=self.group, async_op=True)
        return _once_done(work, exchanged.view(self.ranks, -1))

    def gather(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin: [n] of each rank: [ranks, n], the same everywhere."""
        self.sent += of_gather(tensor.nbytes, self.ranks)
        gathered = tensor.new_empty(self.ranks, *tensor.shape)
        work = dist.all_gather_into_tensor(gathered.view(-1), tensor, group=self.group, async_op=True)
        return _once_done(work, gathered)


def _once_done(work: dist.Work, tensor: Tensor) -> Callable[[], Tensor]:
    def finish() -> Tensor:
        work.wait()
        return tensor

    return finish


class Method(Protocol):
    keeps_error: bool
    """Whether what is left behind is worth being kept."""

    def sum(self, own: Tensor, present: Tensor, wire: Wire) -> tuple[Tensor, Tensor]:
        """(about the sum of `own` [N] over all ranks, the sum of `present` [P]), both fp32.

        `present`: small numbers that are summed exactly enough to tell 0 from others. What `own` has that wasn't sent
        is left in it.
        """
        ...

    def completed(self) -> None:
        """The step whose gradients were summed last is complete."""
        ...


class Whole:
    """Everything, as it is."""

    keeps_error = False

    def sum(self, own: Tensor, present: Tensor, wire: Wire) -> tuple[Tensor, Tensor]:
        total = wire.sum_(torch.cat([own, present]))
        own.zero_()
        return total[: len(own)], total[len(own) :]

    def completed(self) -> None:
        pass


class Cast:
    """Everything, in half the bytes; the sum too."""

    keeps_error = False

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def sum(self, own: Tensor, present: Tensor, wire: Wire) -> tuple[Tensor, Tensor]:
        narrow = own.new_zeros(whole_parts(len(own) + len(present), wire.ranks), dtype=self._dtype)
        narrow[: len(own)] = own
        narrow[len(own) : len(own) + len(present)] = present
        # Each rank sums a part, in fp32, of which all then get the half: no more is sent than by sums of halves, and
        # nothing is rounded in between. In pieces, several at a time: one alone fills a link in one direction only.
        pieces = narrow.split(wire.ranks * PIECE)
        exchanged = [wire.exchange(piece) for piece in pieces]
        gathered = [wire.gather(whole().float().sum(0).to(self._dtype)) for whole in exchanged]
        wide = torch.cat([whole().view(-1) for whole in gathered]).float()
        return wide[: len(own)], wide[len(own) : len(own) + len(present)]

    def completed(self) -> None:
        pass


class TopK:
    """The largest elements of each rank, wherever they are (Aji and Heafield, arXiv 1704.05021)."""

    keeps_error = True

    def __init__(self, share: float) -> None:
        self._share = share

    def sum(self, own: Tensor, present: Tensor, wire: Wire) -> tuple[Tensor, Tensor]:
        chunks = own.split(CHUNK)
        positions, largest = [], []
        for chunk in chunks:
            where = torch.topk(chunk.abs(), chosen(len(chunk), self._share), sorted=False).indices
            positions.append(where.int())
            largest.append(chunk[where])
            chunk[where] = 0.0
        counts = [len(where) for where in positions]
        # Positions travel in the bits of numbers.
        packed = torch.cat([*largest, *(where.view(torch.float32) for where in positions), present])
        total, found = torch.zeros_like(own), torch.zeros_like(present)
        for row in wire.gather(packed)():  # rank by rank, so that all add in the same order
            values, places, flags = row.split([sum(counts), sum(counts), len(present)])
            found += flags
            for chunk, value, place in zip(
                total.split(CHUNK), values.split(counts), places.view(torch.int32).split(counts), strict=True
            ):
                chunk.index_add_(0, place.long(), value)
        return total, found

    def completed(self) -> None:
        pass


@dataclass(frozen=True)
class Matrix:
    """Of a parameter whose elements start at `start`, this rank's part."""

    index: int  # of the parameter
    start: int
    rows: int
    columns: int

    def of(self, flat: Tensor) -> Tensor:
        return flat[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)


class PowerSGD:
    """Matrices as products of two narrow ones; what is no matrix, or a small one, in full (Vogels et al., 1905.13727).

    The right one begins where that of the step before ended: over the steps it becomes what a decomposition would give.
    right: of the last completed step, by parameter.
    """

    keeps_error = True

    def __init__(self, matrices: Sequence[Matrix], sizes: Sequence[int], rank: int, device: torch.device) -> None:
        """sizes: elements of each parameter, in their order in the vector."""
        self._matrices, self._rank = matrices, rank
        dense = {matrix.index for matrix in matrices}
        self._loose = [index for index in range(len(sizes)) if index not in dense]
        self._sizes = list(sizes)
        # The same on all replicas, in every run.
        generator = torch.Generator().manual_seed(0)
        self.right = {
            m.index: nn.functional.normalize(torch.randn(m.columns, rank, generator=generator), dim=0).to(device)
            for m in matrices
        }
        self._next = self.right

    def sum(self, own: Tensor, present: Tensor, wire: Wire) -> tuple[Tensor, Tensor]:
        parts = own.split(self._sizes)
        loose = [parts[index] for index in self._loose]
        sizes = [m.rows * self._rank for m in self._matrices]
        first = own.new_empty(sum(sizes) + sum(map(len, loose)) + len(present))
        lefts, rest, found = first.split([sum(sizes), sum(map(len, loose)), len(present)])
        for m, left in zip(self._matrices, lefts.split(sizes), strict=True):
            torch.mm(m.of(own), self.right[m.index], out=left.view(m.rows, self._rank))
        torch.cat([*loose, own[:0]], out=rest)
        found.copy_(present)
        wire.sum_(first)

        total = torch.empty_like(own)
        bases = [self._basis(left.view(-1, self._rank)) for left in lefts.split(sizes)]
        sizes = [m.columns * self._rank for m in self._matrices]
        second = own.new_empty(sum(sizes))
        for m, basis, right in zip(self._matrices, bases, second.split(sizes), strict=True):
            matrix, product = m.of(own), right.view(m.columns, self._rank)
            torch.mm(matrix.t(), basis, out=product)
            matrix.addmm_(basis, product.t(), alpha=-1.0)
        if sizes:
            wire.sum_(second)
        self._next = {}
        for m, basis, right in zip(self._matrices, bases, second.split(sizes), strict=True):
            self._next[m.index] = right.view(m.columns, self._rank)
            torch.mm(basis, self._next[m.index].t(), out=m.of(total))
        totals = total.split(self._sizes)
        for index, part in zip(self._loose, rest.split([len(parts[i]) for i in self._loose]), strict=True):
            totals[index].copy_(part)
            parts[index].zero_()
        return total, found

    def completed(self) -> None:
        self.right = self._next

    def _basis(self, left: Tensor) -> Tensor:
        """[rows, rank]: orthonormal columns that span those of `left`; zeros where there are fewer."""
        if not len(left):
            return left
        found = torch.linalg.qr(left).Q
        return nn.functional.pad(found, (0, self._rank - found.shape[1]))
