"""Initial weights as a pure function of (seed, name of the parameter)."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from trainmaster.host.seeds import seed_of


class Initializable(Protocol):
    def initial_std(self, name: str) -> float | None: ...


def initialize(model: nn.Module, seed: int) -> None:
    """Fill each parameter of `model`, which says by `initial_std(name)` how, from a generator of its own."""
    for name, parameter in model.named_parameters():
        std = model.initial_std(name)
        with torch.no_grad():
            if std is None:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, std, generator=generator(seed, name))


def generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator keyed by (seed, name); its numbers are the same on every machine."""
    return torch.Generator().manual_seed(seed_of("initial", seed, name))
