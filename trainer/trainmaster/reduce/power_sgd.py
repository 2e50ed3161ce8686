"""PowerSGD: matrices are sent as products of two narrow matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainmaster.reduce.counted_collectives import Wire


@dataclass(frozen=True)
class Matrix:
    """This rank's part of a parameter, whose elements begin at `start` of the vector."""

    index: int  # of the parameter
    start: int
    rows: int
    columns: int

    def of(self, flat: Tensor) -> Tensor:
        return flat[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)


class PowerSGD:
    """Sends matrices as products of two narrow ones, and small matrices and vectors in full (Vogels et al., arXiv
    1905.13727).

    The right factor begins as that of the step before, so over the steps it approaches the factor of a decomposition.
    `right` has the factors of the last completed step, by parameter.
    """

    keeps_error = True

    def __init__(self, matrices: Sequence[Matrix], sizes: Sequence[int], rank: int, device: torch.device) -> None:
        """`sizes` has the number of elements of each parameter, in their order in the vector."""
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
        """Return [rows, rank]: orthonormal columns that span those of `left`, and zeros if there are fewer."""
        if not len(left):
            return left
        found = torch.linalg.qr(left).Q
        return nn.functional.pad(found, (0, self._rank - found.shape[1]))
