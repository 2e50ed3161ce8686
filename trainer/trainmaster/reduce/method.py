"""Ways to sum a vector over replicas that send less than all of it.

Each sums about: what a rank's part of the sum leaves out stays behind in its own vector, so that it can be added to the
next one (error feedback: Karimireddy et al., arXiv 1901.09847). The sum is the same, to the bit, on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from trainmaster.reduce.compressed_size import of_gather, of_sum


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
