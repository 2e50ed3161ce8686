"""Optimizers and their learning rate, a pure function of the step."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainmaster.contract.config import OptimizerConfig


def build(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Matrices decay, vectors (norms, biases) don't."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weightDecay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    # Fused: one kernel per group instead of ten dispatches per DTensor.
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Of step 1 to `steps`: linear warm-up, then a cosine down to minLrRatio, or constant."""
    if step <= config.warmupSteps:
        return config.lr * step / config.warmupSteps
    if config.schedule == "constant":
        return config.lr
    done = (step - config.warmupSteps) / max(1, steps - config.warmupSteps)
    return config.lr * (config.minLrRatio + (1 - config.minLrRatio) * 0.5 * (1 + math.cos(math.pi * done)))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
