"""Layers that models share. Shapes: B sequences, T positions, H heads of queries, G heads of keys and values, K width
of a head, W width of the stream, F hidden width of an MLP, V tokens of the vocabulary.

Nothing here counts heads or hidden units but by the shapes that it meets: so they may be in parts on several ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmaster.models.options import DecoderOptions

Rotation = tuple[Tensor, Tensor]


class CausalAttention(nn.Module):  # type: ignore[misc]
    """No parameters; a module so that a plan can name it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, H, T, K] of q [B, H, T, K], k and v [B, G, T, K]; H is a multiple of G (arXiv 2305.13245)."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class SequenceSums(nn.Module):  # type: ignore[misc]
    """No parameters; a module so that a plan can name it."""

    def forward(self, sums: Tensor) -> Tensor:
        """Sums over a sequence [B, …], without a gradient: of the whole one, wherever its parts are."""
        return sums


class AuxiliaryLoss(nn.Module):  # type: ignore[misc]
    """Lets a model add to its loss from within: no outputs have to be passed on, from stage to stage, for it.

    scale: what the loss, a sum over tokens, is multiplied by: 1 / tokens of the step, set before each step. None: the
    loss is a mean over the tokens that are there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale: float | None = None

    def forward(self, x: Tensor, loss: Tensor) -> Tensor:
        """x [B, T, W], whose backward pass is that of `loss`, a scalar, too."""
        return _Attached.apply(x, loss, 1 / (x.shape[0] * x.shape[1]) if self.scale is None else self.scale)


class _Attached(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(loss)
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (loss,) = ctx.saved_tensors
        return grad, torch.full_like(loss, ctx.scale), None


class Block(nn.Module):  # type: ignore[misc]
    """Attention and an MLP, each added to the stream, of which it gets the normalized values."""

    def __init__(self, width: int, eps: float, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=eps)
        self.attention = attention
        self.mlp_norm = nn.RMSNorm(width, eps=eps)
        self.mlp = mlp

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):  # type: ignore[misc]
    """A decoder-only transformer of `blocks`.

    hidden: of the MLPs. embed, shared, blocks and unembed are `forward` in parts: stages of a pipeline call them one by
    one.
    """

    def __init__(
        self,
        options: DecoderOptions,
        vocabulary: int,
        hidden: int,
        blocks: Iterable[nn.Module],
        eps: float = 1e-5,
        rotary_base: float = 10_000.0,
    ) -> None:
        super().__init__()
        self.layers, self.width, self.hidden = options.layers, options.width, hidden
        self.head_width, self.rotary_base = options.width // options.heads, rotary_base
        self.embedding = nn.Embedding(vocabulary, options.width)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(options.width, eps=eps)
        self.head = nn.Linear(options.width, vocabulary, bias=False)

    def initial_std(self, name: str) -> float | None:
        """Standard deviation of a parameter's initial values; None: it starts as ones."""
        if "norm" in name:
            return None
        if name == "embedding.weight":
            return 1.0
        if name.endswith("attention.out.weight"):
            return residual_std(self.width, self.layers)
        if ".down" in name:
            return residual_std(self.hidden, self.layers)
        return 1 / math.sqrt(self.width)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] of the token that follows each of tokens [B, T].

        positions: int64 [T], of the tokens in their sequence; from 0 on if it is left out.
        """
        x = self.embed(tokens)
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=x.device)
        shared = self.shared(positions, x)
        for block in self.blocks:
            x = block(x, *shared)
        return self.unembed(x)

    def embed(self, tokens: Tensor) -> Tensor:
        """The stream [B, T, W] that the first block gets."""
        return self.embedding(tokens)

    def shared(self, positions: Tensor, x: Tensor) -> tuple[Any, ...]:
        """What each block gets besides the stream."""
        return (rotations(positions, self.head_width, x.dtype, self.rotary_base),)

    def unembed(self, x: Tensor) -> Tensor:
        """Logits of the stream that the last block leaves."""
        return self.head(self.norm(x))


def rotations(positions: Tensor, width: int, dtype: torch.dtype, base: float) -> Rotation:
    """Cosine and sine [T, K] of the rotary embedding (Su et al., arXiv 2104.09864), computed in fp32.

    Not a buffer: it would be one more thing to shard, to cast and to save, and costs microseconds.
    """
    frequency = base ** (torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / -width)
    angle = torch.outer(positions.to(torch.float32), frequency).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """x [B, H, T, K] with each pair (i, i + K/2) turned by its position's angle."""
    cosine, sine = rotation
    low, high = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-high, low), dim=-1) * sine


def residual_std(width: int, layers: int) -> float:
    """Of what feeds the residual stream: scaled down by its depth (GPT-2), so that the stream's variance isn't."""
    return 1 / math.sqrt(width) / math.sqrt(2 * layers)
