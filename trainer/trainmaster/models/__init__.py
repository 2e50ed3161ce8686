"""Models that know nothing of parallelism. Importing this package imports no torch; `build` does.

A model is an `nn.Module` with `forward(tokens[B, T] int64) -> logits[B, T, V]` and an attribute `blocks`, the
submodules that make good units of sharding and of recomputation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmaster.contract.config import ModelConfig
from trainmaster.errors import ConfigError, unknown
from trainmaster.models.options import GPTOptions
from trainmaster.options import read

if TYPE_CHECKING:
    from torch import nn

MODELS = {"gpt": GPTOptions}


def validate(config: ModelConfig) -> GPTOptions:
    """The model's options, checked. Raises ConfigError in words."""
    if config.name not in MODELS:
        raise ConfigError(unknown("model.name", config.name, MODELS))
    return read(MODELS[config.name], config.options, "model.options")


def build(config: ModelConfig, seed: int, device: Any = None) -> nn.Module:
    """The model with its initial weights on `device` (default: CPU).

    The weights depend on the seed and on each parameter's name, and on nothing else: not on the mesh, not on the
    order of construction, not on torch's global generator. Raises ConfigError.
    """
    options = validate(config)
    from trainmaster.models.gpt import GPT
    from trainmaster.models.initialization import initialize

    model = GPT(options)
    initialize(model, seed)
    return model if device is None else model.to(device)
