"""A GPT over bytes: rotary positions, RMS norm, GELU, no biases. Shapes as in `layers`; V = 256."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from trainmaster.models.layers import Block, CausalAttention, Decoder, ReversibleBlock, Rotation, rotate
from trainmaster.models.model_options import GPTOptions
from trainmaster.parallel.model_plan import Plan

VOCABULARY = 256


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        # Its rows are those of the first head's query, key and value, then of the second's: so heads can be dealt out.
        self.heads = nn.Linear(width, 3 * width, bias=False)
        self.core = CausalAttention()
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        q, k, v = self.heads(x).unflatten(-1, (-1, 3, self.head_width)).permute(3, 0, 2, 1, 4)
        y = self.core(rotate(q, rotation), rotate(k, rotation), v)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class GPT(Decoder):
    plan = Plan(
        blocks="blocks",
        stem=("embedding",),
        tail=("norm", "head"),
        tensor={
            "embedding": "vocabulary",
            "blocks.*.attention_norm": "norm",
            "blocks.*.attention.heads": "column",
            "blocks.*.attention.out": "row",
            "blocks.*.mlp_norm": "norm",
            "blocks.*.mlp.up": "column",
            "blocks.*.mlp.down": "row",
            "norm": "norm",
            "head": "head",
        },
        attention="blocks.*.attention.core",
    )

    def __init__(self, options: GPTOptions) -> None:
        width = options.width
        block = ReversibleBlock if options.reversible else Block
        blocks = (block(width, 1e-5, Attention(width, options.heads), MLP(width)) for _ in range(options.layers))
        super().__init__(options, VOCABULARY, 4 * width, blocks)
