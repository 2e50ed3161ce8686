"""A Llama: rotary positions, RMS norm, SwiGLU, fewer heads for keys and values than for queries. Shapes as in `layers`.

Touvron et al., arXiv 2302.13971; grouped queries: Ainslie et al., arXiv 2305.13245.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from trainmaster.models.layers import Block, CausalAttention, Decoder, ReversibleBlock, Rotation, rotate
from trainmaster.models.model_options import LlamaOptions
from trainmaster.parallel.model_plan import Plan, Role

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
    """An MLP with a gate (Shazeer, arXiv 2002.05202)."""

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
        width, eps = options.width, options.norm_eps
        block = ReversibleBlock if options.reversible else Block
        blocks = (block(width, eps, Attention(options), self.mlp(options)) for _ in range(options.layers))
        super().__init__(options, options.vocabulary, options.hidden_width, blocks, eps, options.rope_theta)

    def mlp(self, options: LlamaOptions) -> nn.Module:
        """Return the MLP of a block."""
        return SwiGLU(options.width, options.hidden_width)
