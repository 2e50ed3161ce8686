"""TopK: only the largest elements of a vector are sent."""

from __future__ import annotations

import torch
from torch import Tensor

from trainmaster.reduce.compressed_size import CHUNK, chosen
from trainmaster.reduce.counted_collectives import Wire


class TopK:
    """Sends the largest elements of each rank, at any positions (Aji and Heafield, arXiv 1704.05021)."""

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
