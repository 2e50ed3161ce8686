"""A mixture of experts: a Llama with several MLPs in each block, of which each token uses some.

Shapes as in `layers`; E experts, k of them for each token, N = B x T tokens. Shazeer et al., arXiv 1701.06538; no token
is ever dropped. The loss that balances the use of experts is computed for each sequence separately (DeepSeek-V3, arXiv
2412.19437, section 2.1.2). So it is a sum over sequences, which is the same for every division of them among
micro-batches and ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainmaster.models.experts import Experts
from trainmaster.models.layers import AuxiliaryLoss, SequenceSums
from trainmaster.models.llama import ATTENTION, ENDS, Llama
from trainmaster.models.model_options import LlamaOptions, MoEOptions
from trainmaster.parallel.model_plan import Plan


class MoE(nn.Module):  # type: ignore[misc]
    def __init__(self, options: MoEOptions) -> None:
        super().__init__()
        self.chosen, self.balance = options.experts_per_token, options.balance
        self.router = nn.Linear(options.width, options.experts, bias=False)
        self.experts = Experts(options.experts, options.width, options.hidden_width)
        self.sums = SequenceSums()
        self.auxiliary = AuxiliaryLoss()
        self.last_choices: Tensor | None = None  # [B, T, k], for who wants to look

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).float().softmax(-1)
        weights, choices = probabilities.topk(self.chosen, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        self.last_choices = choices
        y = self.experts(x.flatten(0, 1), choices.flatten(0, 1), weights.flatten(0, 1)).unflatten(0, x.shape[:2])
        return self.auxiliary(y, self.balance * self._imbalance(probabilities, choices)) if self.balance else y

    def _imbalance(self, probabilities: Tensor, choices: Tensor) -> Tensor:
        """Return E x (share of the sequence's choices) x (probability), summed over tokens: 1 per token if all is
        even."""
        batch, time, experts = probabilities.shape
        counts = torch.zeros(batch, experts + 1, device=choices.device)
        counts[:, :experts].scatter_add_(1, choices.flatten(1), torch.ones_like(choices.flatten(1), dtype=counts.dtype))
        counts[:, experts] = time * self.chosen
        sums = self.sums(counts)
        shares = sums[:, :experts] / sums[:, experts:]
        return experts * (shares * probabilities.sum(1)).sum()


class MoETransformer(Llama):
    plan = Plan(
        blocks="blocks",
        stem=("embedding",),
        tail=("norm", "head"),
        tensor={
            **ENDS,
            **ATTENTION,
            "blocks.*.mlp": "summed_region",
            "blocks.*.mlp.router": "partial",
            "blocks.*.mlp.experts": "experts",
        },
        attention="blocks.*.attention.core",
        sequence_sums="blocks.*.mlp.sums",
        auxiliary="blocks.*.mlp.auxiliary",
        experts="blocks.*.mlp.experts",
    )

    def mlp(self, options: LlamaOptions) -> nn.Module:
        assert isinstance(options, MoEOptions)
        return MoE(options)
