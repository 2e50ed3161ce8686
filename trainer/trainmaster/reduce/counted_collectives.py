"""The collectives that methods of compression send with, and a count of the bytes that they send."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from trainmaster.reduce.compressed_size import of_gather, of_sum


class Wire:
    """Collectives over a group. `sent` counts the bytes that this rank has sent with them, as ring algorithms would."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.ranks = group, dist.get_world_size(group)
        self.sent = 0

    def sum_(self, tensor: Tensor) -> Tensor:
        self.sent += of_sum(tensor.nbytes, self.ranks)
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def exchange(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Start an all-to-all: [ranks x n] of each rank. The result is this rank's part of each, [ranks, n]."""
        self.sent += of_gather(tensor.nbytes, self.ranks) // self.ranks
        exchanged = torch.empty_like(tensor)
        work = dist.all_to_all_single(exchanged, tensor, group=self.group, async_op=True)
        return _once_done(work, exchanged.view(self.ranks, -1))

    def gather(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Start an all-gather: [n] of each rank. The result is [ranks, n], the same on all ranks."""
        self.sent += of_gather(tensor.nbytes, self.ranks)
        gathered = tensor.new_empty(self.ranks, *tensor.shape)
        work = dist.all_gather_into_tensor(gathered.view(-1), tensor, group=self.group, async_op=True)
        return _once_done(work, gathered)


def _once_done(work: dist.Work, tensor: Tensor) -> Callable[[], Tensor]:
    def finish() -> Tensor:
        work.wait()
        return tensor

    return finish
