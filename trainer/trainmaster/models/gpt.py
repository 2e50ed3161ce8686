"""GPT over bytes. Shapes: B sequences, T positions, H heads, K width of a head, W = H x K, V = 256."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmaster.models.options import GPTOptions

VOCABULARY = 256


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotate(q, rotation), rotate(k, rotation), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class MLP(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.RMSNorm(width, eps=1e-5)
        self.mlp = MLP(width)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):  # type: ignore[misc]
    def __init__(self, options: GPTOptions) -> None:
        super().__init__()
        self.options = options
        self.embedding = nn.Embedding(VOCABULARY, options.width)
        self.blocks = nn.ModuleList(Block(options.width, options.heads) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.width, eps=1e-5)
        self.head = nn.Linear(options.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, V] of the byte that follows each of tokens [B, T]; T may be shorter than the context."""
        x = self.embedding(tokens)
        rotation = rotations(tokens.shape[1], x.shape[-1] // self.options.heads, x.device, x.dtype)
        for block in self.blocks:
            x = block(x, rotation)
        return self.head(self.norm(x))

    def initial_std(self, name: str) -> float | None:
        """Standard deviation of a parameter's initial values; None: it starts as ones.

        What feeds the residual stream is scaled down by its depth (GPT-2), so that the stream's variance isn't.
        """
        if "norm" in name:
            return None
        if name == "embedding.weight":
            return 1.0
        std = 1 / math.sqrt(self.options.width)
        if name.endswith(("attention.out.weight", "mlp.down.weight")):
            return std / math.sqrt(2 * self.options.layers) / (2 if "mlp" in name else 1)
        return std


def rotations(time: int, width: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [T, K] of the rotary embedding (Su et al., arXiv 2104.09864), computed in fp32.

    Not a buffer: it would be one more thing to shard, to cast and to save, and costs microseconds.
    """
    frequency = 10_000.0 ** (torch.arange(0, width, 2, device=device, dtype=torch.float32) / -width)
    angle = torch.outer(torch.arange(time, device=device, dtype=torch.float32), frequency).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, H, T, K] with each pair (i, i + K/2) turned by its position's angle."""
    cosine, sine = rotation
    low, high = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-high, low), dim=-1) * sine
