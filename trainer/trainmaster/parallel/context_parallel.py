"""Context parallelism: each rank has a part of each sequence, and attention sees the whole sequence.

Either all keys and values are gathered (Llama 3, arXiv 2407.21783, section 3.3.2), or parts of the sequence are
exchanged for heads (DeepSpeed-Ulysses, arXiv 2309.14509). Late tokens attend to more tokens than early ones, so each
rank gets one chunk from the head of the sequence and one from its tail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmaster.contract.config import ContextConfig
from trainmaster.errors import ConfigError
from trainmaster.parallel.collectives import Group, all_reduce, exchanged, gathered
from trainmaster.parallel.model_plan import named, plan_of, replace_forward


def apply(model: nn.Module, group: Group, config: ContextConfig) -> nn.Module:
    """Let each attention of `model` see the whole sequence, and return the model.

    Each rank of `group` has the tokens at `Chunks.positions`. Raises ConfigError if the model's plan names no
    attention.
    """
    cores = list(named(model, plan_of(model).attention))
    if not cores:
        raise ConfigError(
            f"parallelism.cp: model {type(model).__name__} declares no plan for context parallelism "
            f"(plan.attention); only cp 1 would do"
        )
    chunks = Chunks(group.size(), config.balance == "HeadTail")
    make = _all_gather if config.method == "AllGather" else _ulysses
    for _, core in cores:
        replace_forward(core, make(type(core).forward, group, chunks))
    for _, module in named(model, plan_of(model).sequence_sums):
        replace_forward(module, lambda module, sums: all_reduce(sums, group))
    return model


class Chunks:
    """Which chunks of a sequence each of n ranks has."""

    def __init__(self, n: int, head_tail: bool) -> None:
        self.count = 2 * n if head_tail else n
        self.of_rank = [[i, 2 * n - 1 - i] if head_tail else [i] for i in range(n)]
        self.order = [chunk for chunks in self.of_rank for chunk in chunks]
        self.places = [self.order.index(chunk) for chunk in range(self.count)]

    def positions(self, rank: int, time: int) -> Tensor:
        """Return the positions of a rank's tokens in a sequence of `time` tokens, int64 [time / n]."""
        size = time // self.count
        return torch.cat([torch.arange(chunk * size, (chunk + 1) * size) for chunk in self.of_rank[rank]])

    def in_sequence(self, x: Tensor, dim: int) -> Tensor:
        """Return x, whose parts along `dim` are in the order of the ranks, in the order of the sequence."""
        return self._reordered(x, dim, self.places)

    def by_rank(self, x: Tensor, dim: int) -> Tensor:
        """Return x, which is in the order of the sequence along `dim`, in the order of the ranks."""
        return self._reordered(x, dim, self.order)

    def _reordered(self, x: Tensor, dim: int, places: list[int]) -> Tensor:
        if places == sorted(places):
            return x
        parts = x.chunk(self.count, dim)
        return torch.cat([parts[place] for place in places], dim)


def _all_gather(_: Callable[..., Tensor], group: Group, chunks: Chunks) -> Callable[..., Tensor]:
    own = chunks.of_rank[group.rank()]

    def forward(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        both = chunks.in_sequence(gathered(torch.stack([k, v]), 3, group), 3)
        size = both.shape[3] // chunks.count
        parts = []
        for part, chunk in zip(q.chunk(len(own), 2), own, strict=True):
            seen = both[:, :, :, : (chunk + 1) * size]
            parts.append(_attend_to_end(part, seen[0], seen[1]))
        return torch.cat(parts, 2)

    return forward


def _attend_to_end(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the causal attention of q [B, H, t, K], the last t tokens, to all of k and v [B, G, T, K]."""
    t, time = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if t == time:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    mask: Any
    if q.is_cuda:
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(t, time)  # flash attention knows it without a mask in memory
        if grouped:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    mask = torch.ones(t, time, dtype=torch.bool, device=q.device).tril(time - t)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)


def _ulysses(inner: Callable[..., Tensor], group: Group, chunks: Chunks) -> Callable[..., Tensor]:
    n = group.size()

    def forward(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # [B, heads, T/n, K] -> [n, B, heads/n, T/n, K]: to each rank some heads.
        split = [x.unflatten(1, (n, x.shape[1] // n)).movedim(1, 0) for x in (q, k, v)]
        sizes = [x.shape[2] for x in split]
        # -> [n, …]: from each rank its part of the sequence -> [B, heads/n, T, K].
        whole = exchanged(torch.cat(split, 2), group).movedim(0, 2).flatten(2, 3)
        whole = chunks.in_sequence(whole, 2)
        y = inner(module, *whole.split(sizes, 1))
        y = chunks.by_rank(y, 2).unflatten(2, (n, -1)).movedim(2, 0)
        return exchanged(y, group).movedim(0, 1).flatten(1, 2)

    return forward
