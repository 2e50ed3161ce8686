"""Initial weights, as a pure function of the seed and the parameter's name."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import nn

from trainmaster.host.seeds import seed_of


class Initializable(Protocol):
    def initial_std(self, name: str) -> float | None: ...


def initialize(model: nn.Module, seed: int) -> None:
    """Fill each parameter of `model` from a generator of its own, as `model.initial_std(name)` says."""
    for name, parameter in model.named_parameters():
        std = model.initial_std(name)
        with torch.no_grad():
            if std is None:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, std, generator=generator(seed, name))


def generator(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator seeded by (seed, name). Its numbers are the same on every machine."""
    return torch.Generator().manual_seed(seed_of("initial", seed, name))


def residual_std(width: int, layers: int) -> float:
    """Return the standard deviation of weights whose outputs are added to the residual stream.

    It decreases with the depth (GPT-2), so that the variance of the stream does not grow with it.
    """
    return 1 / math.sqrt(width) / math.sqrt(2 * layers)


def transformer_std(name: str, width: int, hidden: int, layers: int) -> float | None:
    """Return the standard deviation of the initial values of a transformer's parameter, or None if they are ones.

    `hidden` is the hidden width of the MLPs.
    """
    if name.endswith(".bias"):
        return 0.0
    if "norm" in name:
        return None
    if name in ("embedding.weight", "positions.weight"):
        return 1.0
    if name.endswith("attention.out.weight"):
        return residual_std(width, layers)
    if ".down" in name:
        return residual_std(hidden, layers)
    return 1 / math.sqrt(width)
