"""Layers that models share.

Shapes: B sequences, T positions, H heads of queries, G heads of keys and values, K width of a head, W width of the
stream, F hidden width of an MLP, V tokens of the vocabulary. The layers take the numbers of heads and hidden units from
the shapes that they get, so that these may be divided among ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmaster.models.initialization import transformer_std
from trainmaster.models.model_options import DecoderOptions, TransformerOptions

Rotation = tuple[Tensor, Tensor]


class CausalAttention(nn.Module):  # type: ignore[misc]
    """Causal attention. It has no parameters; it is a module so that a plan can name it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return [B, H, T, K] for q [B, H, T, K], and k and v [B, G, T, K]; H is a multiple of G (arXiv 2305.13245)."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class BidirectionalAttention(nn.Module):  # type: ignore[misc]
    """Attention in which each position sees the whole sequence. It has no parameters."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return [B, H, T, K] for q, k and v, each [B, H, T, K]."""
        return F.scaled_dot_product_attention(q, k, v)


class Positions(nn.Module):  # type: ignore[misc]
    """Learned embeddings of positions. It is a module so that a plan can name it: a rank may have a slice of the
    sequence."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, T, W] with the embedding of its position added to each token."""
        return self.at(x, 0)

    def at(self, x: Tensor, first: int) -> Tensor:
        """Return the same for a slice of the sequence that begins at position `first`."""
        return x + self.weight[first : first + x.shape[1]]


class SequenceSums(nn.Module):  # type: ignore[misc]
    """Sums over a sequence. It has no parameters; it is a module so that a plan can name it."""

    def forward(self, sums: Tensor) -> Tensor:
        """Return sums [B, …] over the whole sequence, if each rank has a part of it, without a gradient."""
        return sums


class AuxiliaryLoss(nn.Module):  # type: ignore[misc]
    """Adds to the loss from within a model, so that no further outputs have to be passed from stage to stage.

    `scale` is the factor of the auxiliary loss, which is a sum over tokens: 1 / tokens of the step, set before each
    step. If it is None, the loss is a mean over the tokens of x, times `share`: the share that x has in a batch that is
    divided among ranks or devices, whose gradients are summed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale: float | Tensor | None = None
        self.share = 1.0

    def forward(self, x: Tensor, loss: Tensor) -> Tensor:
        """Return x [B, T, W]. Its backward pass also computes the gradients of `loss`, a scalar."""
        # A device may get an empty part of a batch.
        mean = self.share / max(1, x.shape[0] * x.shape[1])
        return _Attached.apply(x, loss, mean if self.scale is None else self.scale)


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
    """Attention and an MLP. Each gets the normalized stream, and its output is added to the stream."""

    def __init__(
        self, width: int, eps: float, attention: nn.Module, mlp: nn.Module, norm: type[nn.Module] = nn.RMSNorm
    ) -> None:
        super().__init__()
        self.attention_norm = norm(width, eps=eps)
        self.attention = attention
        self.mlp_norm = norm(width, eps=eps)
        self.mlp = mlp

    def forward(self, x: Tensor, *shared: Any) -> Tensor:
        """Return the stream after this block, [B, T, W]. `shared` are further inputs of the attention."""
        x = x + self.attention(self.attention_norm(x), *shared)
        return x + self.mlp(self.mlp_norm(x))


class ReversibleBlock(Block):
    """A block of two streams, x [B, T, 2 W]: attention to the second is added to the first, an MLP of the first to the
    second.

    So its input can be computed from its output (Gomez et al., arXiv 1707.04585).
    """

    def forward(self, x: Tensor, *shared: Any) -> Tensor:
        x1, x2 = x.chunk(2, -1)
        y1 = x1 + self.first(x2, *shared)
        return torch.cat((y1, x2 + self.second(y1)), -1)

    def first(self, x: Tensor, *shared: Any) -> Tensor:
        """Return what is added to the first stream, computed from the second stream [B, T, W]."""
        return self.attention(self.attention_norm(x), *shared)

    def second(self, x: Tensor) -> Tensor:
        """Return what is added to the second stream, computed from the updated first stream [B, T, W]."""
        return self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):  # type: ignore[misc]
    """A stack of `blocks` between an embedding and a head.

    `hidden` is the hidden width of the MLPs, and `norm` is applied after the last block. embed, shared, blocks and
    unembed are the parts of `forward`; the stages of a pipeline call them separately.
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
        """Return the standard deviation of a parameter's initial values, or None if they are ones."""
        return transformer_std(name, self.width, self.hidden, self.layers)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return logits [B, T, V] at each of tokens [B, T]; those of a decoder are for the token that follows.

        `positions` int64 [T] are the positions of the tokens in their sequence. Default: 0 to T - 1.
        """
        x = self.embed(tokens)
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=x.device)
        shared = self.shared(positions, x)
        for block in self.blocks:
            x = block(x, *shared)
        return self.unembed(x)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the stream [B, T, W] that the first block gets."""
        return self.embedding(tokens)

    def shared(self, positions: Tensor, x: Tensor) -> tuple[Any, ...]:
        """Return the inputs of each block other than the stream."""
        return ()

    def unembed(self, x: Tensor) -> Tensor:
        """Return the logits for the stream after the last block."""
        return self.head(self.norm(x))


class Decoder(Transformer):
    """A decoder-only transformer: rotary positions, RMS norm, no biases.

    With `options.reversible` it has two streams. Both begin as the embedding, and the head gets their mean.
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
    """Return cosine and sine [T, K] of the rotary embedding (Su et al., arXiv 2104.09864), computed in fp32.

    They are not a buffer, which would have to be sharded, cast and saved. To compute them costs microseconds.
    """
    frequency = base ** (torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / -width)
    angle = torch.outer(positions.to(torch.float32), frequency).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Return x [B, H, T, K] with each pair (i, i + K/2) rotated by its position's angle."""
    cosine, sine = rotation
    low, high = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-high, low), dim=-1) * sine
