"""A Llama: rotary positions, RMS norm, SwiGLU, fewer heads of keys and values than of queries. Shapes as in `layers`.

Touvron et al., arXiv 2302.13971; grouped queries: Ainslie et al., arXiv 2305.13245.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from trainmaster.models.layers import Block, CausalAttention, Decoder, Rotation, residual_std, rotate
from trainmaster.models.options import LlamaOptions
from trainmaster.parallel.plan import Plan, Role

ATTENTION: dict[str, Role] = {
    "blocks.*.attention_norm": "norm",
    "blocks.*.attention": "region",
    "blocks.*.attention.query": "column",
    "blocks.*.attention.key": "column",
    "blocks.*.attention.value": "column",
    "blocks.*.attention.out": "row",
}
ENDS: dict[str, Role] = {
    "embedding": "vocabulary",
    "blocks.*.mlp_norm": "norm",
    "norm": "norm",
    "head": "head",
}


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, options: LlamaOptions) -> None:
        super().__init__()
        width, self.head_width = options.width, options.width // options.heads
        keys = options.kv_heads * self.head_width
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, keys, bias=False)
        self.value = nn.Linear(width, keys, bias=False)
        self.core = CausalAttention()
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        heads = (part(x).unflatten(-1, (-1, self.head_width)) for part in (self.query, self.key, self.value))
        q, k, v = (part.transpose(1, 2) for part in heads)
        y = self.core(rotate(q, rotation), rotate(k, rotation), v)
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):  # type: ignore[misc]
    """Shazeer, arXiv 2002.05202."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Llama(Decoder):
    plan = Plan(
        blocks="blocks",
        stem=("embedding",),
        tail=("norm", "head"),
        tensor={
            **ENDS,
            **ATTENTION,
            "blocks.*.mlp": "region",
            "blocks.*.mlp.gate": "column",
            "blocks.*.mlp.up": "column",
            "blocks.*.mlp.down": "row",
        },
        attention="blocks.*.attention.core",
    )

    def __init__(self, options: LlamaOptions) -> None:
        super().__init__()
        self.options = options
        self.head_width, self.rotary_base = options.width // options.heads, options.rope_theta
        self.embedding = nn.Embedding(options.vocabulary, options.width)
        self.blocks = nn.ModuleList(
            Block(options.width, options.norm_eps, Attention(options), self.mlp(options)) for _ in range(options.layers)
        )
        self.norm = nn.RMSNorm(options.width, eps=options.norm_eps)
        self.head = nn.Linear(options.width, options.vocabulary, bias=False)

    def mlp(self, options: LlamaOptions) -> nn.Module:
        """Of a block."""
        return SwiGLU(options.width, options.hidden_width)

    def initial_std(self, name: str) -> float | None:
        """Standard deviation of a parameter's initial values; None: it starts as ones."""
        if "norm" in name:
            return None
        if name == "embedding.weight":
            return 1.0
        if name.endswith("attention.out.weight"):
            return residual_std(self.options.width, self.options.layers)
        if ".down" in name:
            return residual_std(self.options.hidden_width, self.options.layers)
        return 1 / math.sqrt(self.options.width)
