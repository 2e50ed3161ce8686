"""Sums of all elements of a vector, in fp32 or in 16 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from trainmaster.reduce.compressed_size import whole_parts
from trainmaster.reduce.counted_collectives import Wire

PIECE = 1 << 18  # elements of each rank's part


class Whole:
    """Sends all elements in fp32."""

    keeps_error = False

    def sum(self, own: Tensor, present: Tensor, wire: Wire) -> tuple[Tensor, Tensor]:
        total = wire.sum_(torch.cat([own, present]))
        own.zero_()
        return total[: len(own)], total[len(own) :]

    def completed(self) -> None:
        pass


class Cast:
    """Sends all elements in 16 bits, and sums them in 16 bits, too."""

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
