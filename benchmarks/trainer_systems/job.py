"""What all systems train: the same model from the same weights, the same samples in the same order, the same AdamW."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmaster import data, models
from trainmaster.contract.config import TrainingConfig


@dataclass(frozen=True)
class Job:
    """One rank's part, for systems other than ours."""

    row: str
    config: TrainingConfig
    rank: int
    world: int

    @classmethod
    def from_environment(cls, row: str) -> Job:
        config = TrainingConfig.model_validate_json(os.environ["TRAINMASTER_CONFIG"])
        return cls(row, config, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

    @property
    def data_ranks(self) -> int:
        """How many different shares a batch has."""
        return self.config.parallelism.data_ranks(self.world)

    @property
    def share(self) -> int:
        """Sequences of each step that this rank computes."""
        return self.config.batch.global_ // self.data_ranks

    @property
    def micro_batches(self) -> int:
        return self.config.accumulation(self.world)[1]

    @property
    def clip(self) -> float:
        return self.config.optimizer.clipNorm

    def model(self) -> nn.Module:
        return models.build(self.config.model, self.config.seed)

    def optimizer(self, parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
        """Matrices decay, vectors don't."""
        of, every = self.config.optimizer, list(parameters)
        groups = [
            {"params": [p for p in every if p.dim() >= 2], "weight_decay": of.weightDecay},
            {"params": [p for p in every if p.dim() < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        return torch.optim.AdamW(groups, lr=of.lr, betas=of.betas, eps=of.eps, **{"fused": True, **options})

    def batches(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(step, tokens, targets) of this rank, from step 1 to the last."""
        source = data.build(self.config)
        first = self.rank * self.share if self.data_ranks > 1 else 0
        for step in range(1, self.config.steps + 1):
            consumed = (step - 1) * self.config.batch.global_
            batch = source.batch(consumed, range(first, first + self.share))
            yield step, batch.inputs, batch.targets


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
