"""A BERT: an encoder that is trained to predict masked tokens. Shapes as in `layers`.

Devlin et al., arXiv 1810.04805. Norms come before attention and MLP, as in the BERT of Megatron-LM (Shoeybi et al.,
arXiv 1909.08053, section 5.3). There are no segments: each sample is one text.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from trainmaster.models.layers import BidirectionalAttention, Block, Positions, Transformer
from trainmaster.models.model_options import BertOptions
from trainmaster.parallel.model_plan import Plan

EPS = 1e-12


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        # Its rows are those of the first head's query, key and value, then of the second's: so heads can be dealt out.
        self.heads = nn.Linear(width, 3 * width)
        self.core = BidirectionalAttention()
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x).unflatten(-1, (-1, 3, self.head_width)).permute(3, 0, 2, 1, 4)
        return self.out(self.core(q, k, v).transpose(1, 2).flatten(2))


class MLP(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Bert(Transformer):
    # It names no attention: that of context parallelism is causal.
    plan = Plan(
        blocks="blocks",
        stem=("embedding", "positions"),
        tail=("norm", "head"),
        tensor={
            "embedding": "vocabulary",
            "positions": "positions",
            "blocks.*.attention_norm": "norm",
            "blocks.*.attention.heads": "column",
            "blocks.*.attention.out": "row",
            "blocks.*.mlp_norm": "norm",
            "blocks.*.mlp.up": "column",
            "blocks.*.mlp.down": "row",
            "norm": "norm",
            "head": "head",
        },
    )

    def __init__(self, options: BertOptions) -> None:
        width = options.width
        blocks = (
            Block(width, EPS, Attention(width, options.heads), MLP(width), nn.LayerNorm) for _ in range(options.layers)
        )
        super().__init__(options, options.vocabulary, 4 * width, blocks, nn.LayerNorm(width, eps=EPS), bias=True)
        self.positions = Positions(options.context, width)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.positions(self.embedding(tokens))
