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

from trainmaster.models.model_options import DecoderOptions, TransformerOptions

Rotation = tuple[Tensor, Tensor]


class CausalAttention(nn.Module):  # type: ignore[misc]
    """No parameters; a module so that a plan can name it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, H, T, K] of q [B, H, T, K], k and v [B, G, T, K]; H is a multiple of G (arXiv 2305.13245)."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class BidirectionalAttention(nn.Module):  # type: ignore[misc]
    """No parameters. Each position sees all of its sequence."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, H, T, K] of q, k and v, [B, H, T, K] each."""
        return F.scaled_dot_product_attention(q, k, v)


class Positions(nn.Module):  # type: ignore[misc]
    """Learned embeddings of positions. A module so that a plan can name it: a rank may have a slice of the sequence."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context, width))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, W] with that of its position added to each token."""
        return self.at(x, 0)

    def at(self, x: Tensor, first: int) -> Tensor:
        """The same of a slice of the sequence, from position `first` on."""
        return x + self.weight[first : first + x.shape[1]]


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
        self.scale: float | Tensor | None = None

    def forward(self, x: Tensor, loss: Tensor) -> Tensor:
        """x [B, T, W], whose backward pass is that of `loss`, a scalar, too."""
        return _Attached.apply(x, loss, 1 / (x.shape[0] * x.shape[1]) if self.scale is None else self.scale)


class _Attached(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float | Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (loss,) = ctx.saved_tensors
        return grad, torch.ones_like(loss) * ctx.scale, None


class Block(nn.Module):  # type: ignore[misc]
    """Attention and an MLP, each added to the stream, of which it gets the normalized values."""

    def __init__(
        self, width: int, eps: float, attention: nn.Module, mlp: nn.Module, norm: type[nn.Module] = nn.RMSNorm
    ) -> None:
        super().__init__()
        self.attention_norm = norm(width, eps=eps)
        self.attention = attention
        self.mlp_norm = norm(width, eps=eps)
        self.mlp = mlp

    def forward(self, x: Tensor, *shared: Any) -> Tensor:
        """shared: what the attention gets besides the stream x [B, T, W]."""
        x = x + self.attention(self.attention_norm(x), *shared)
        return x + self.mlp(self.mlp_norm(x))


class ReversibleBlock(Block):
    """The same in two streams, x [B, T, 2 W]: attention of the second is added to the first, then an MLP of the first
    to the second. So its input follows from its output (Gomez et al., arXiv 1707.04585)."""

    def forward(self, x: Tensor, *shared: Any) -> Tensor:
        x1, x2 = x.chunk(2, -1)
        y1 = x1 + self.first(x2, *shared)
        return torch.cat((y1, x2 + self.second(y1)), -1)

    def first(self, x: Tensor, *shared: Any) -> Tensor:
        """What is added to the first stream, of the second [B, T, W]."""
        return self.attention(self.attention_norm(x), *shared)

    def second(self, x: Tensor) -> Tensor:
        """What is added to the second stream, of the first [B, T, W] as it is then."""
        return self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):  # type: ignore[misc]
    """A stack of `blocks` between an embedding and a head.

    hidden: of the MLPs. norm: of what the last block leaves. embed, shared, blocks and unembed are `forward` in parts:
    stages of a pipeline call them one by one.
    """

    def __init__(
        self,
        options: TransformerOptions,
        vocabulary: int,
        hidden: int,
        blocks: Iterable[nn.Module],
        norm: nn.Module,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.layers, self.width, self.hidden = options.layers, options.width, hidden
        self.embedding = nn.Embedding(vocabulary, options.width)
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.head = nn.Linear(options.width, vocabulary, bias=bias)

    def initial_std(self, name: str) -> float | None:
        """Standard deviation of a parameter's initial values; None: it starts as ones."""
        if name.endswith(".bias"):
            return 0.0
        if "norm" in name:
            return None
        if name in ("embedding.weight", "positions.weight"):
            return 1.0
        if name.endswith("attention.out.weight"):
            return residual_std(self.width, self.layers)
        if ".down" in name:
            return residual_std(self.hidden, self.layers)
        return 1 / math.sqrt(self.width)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] at each of tokens [B, T]: of a decoder, of the token that follows it.

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
        return ()

    def unembed(self, x: Tensor) -> Tensor:
        """Logits of the stream that the last block leaves."""
        return self.head(self.norm(x))


class Decoder(Transformer):
    """A decoder-only transformer: rotary positions, RMS norm, no biases. With `options.reversible` it has two streams,
    both of which begin as the embedding; its head gets their mean."""

    def __init__(
        self,
        options: DecoderOptions,
        vocabulary: int,
        hidden: int,
        blocks: Iterable[nn.Module],
        eps: float = 1e-5,
        rotary_base: float = 10_000.0,
    ) -> None:
        super().__init__(options, vocabulary, hidden, blocks, nn.RMSNorm(options.width, eps=eps))
        self.head_width, self.rotary_base = options.width // options.heads, rotary_base
        self.reversible = options.reversible

    def embed(self, tokens: Tensor) -> Tensor:
        x = super().embed(tokens)
        return torch.cat((x, x), -1) if self.reversible else x

    def unembed(self, x: Tensor) -> Tensor:
        return super().unembed(sum(x.chunk(2, -1)) / 2 if self.reversible else x)

    def shared(self, positions: Tensor, x: Tensor) -> tuple[Any, ...]:
        return (rotations(positions, self.head_width, x.dtype, self.rotary_base),)


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
