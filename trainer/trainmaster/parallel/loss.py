"""The loss: a sum over tokens, also if each rank has the logits of a part of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from trainmaster.data import IGNORED
from trainmaster.parallel.collectives import all_reduce_


def cross_entropy(logits: Tensor, targets: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return the cross entropy, summed over tokens, as a scalar in fp32.

    logits are [B, T, V] and targets [B, T] in int64, or [B, V] and [B] for labels. A target IGNORED does not count.

    `group`: the ranks that have V/n of the vocabulary each, in the order of the ranks. Each of them gets the sum over
    all tokens, and none ever has all logits.
    """
    logits, targets = logits.flatten(0, -2).float(), targets.flatten()
    if group is None:
        return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    return _VocabularyParallel.apply(logits, targets, group)


def compiled_cross_entropy() -> Callable[[Tensor, Tensor], Tensor]:
    """Return `cross_entropy` of whole logits in code that is compiled when it is first called.

    Logits of any precision are read once or twice each way. Without compilation there are eight passes over a copy of
    them in fp32, which takes longer than their matrix product.
    """
    compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(cross_entropy, dynamic=False)
    return compiled


class _VocabularyParallel(torch.autograd.Function):  # type: ignore[misc]
    """The cross entropy of Megatron-LM (Shoeybi et al., arXiv 1909.08053, section 3).

    Three numbers are sent for each token, instead of V.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
        highest = logits.amax(-1)
        all_reduce_(highest, group, highest=True)
        shifted = logits - highest.unsqueeze(-1)
        own = targets - group.rank() * logits.shape[-1]
        is_own = (own >= 0) & (own < logits.shape[-1])
        own = own.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)
        picked = shifted.gather(-1, own).squeeze(-1) * is_own
        exponentials = shifted.exp_()
        sums = torch.stack([exponentials.sum(-1), picked])
        all_reduce_(sums, group)
        total, picked = sums
        counts = targets != IGNORED
        ctx.save_for_backward(exponentials.div_(total.unsqueeze(-1)), own, is_own, counts)
        return ((total.log() - picked) * counts).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        probabilities, own, is_own, counts = ctx.saved_tensors
        gradient = probabilities.scatter_add(-1, own, -is_own.to(probabilities.dtype).unsqueeze(-1))
        return gradient * (counts * grad).unsqueeze(-1), None, None
