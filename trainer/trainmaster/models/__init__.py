"""Models that know nothing of parallelism. Importing this package imports no torch; `build` does.

A model is an `nn.Module` with `forward(tokens[B, T] int64) -> logits[B, T, V]` and a `plan` (`parallel.plan.Plan`) of
how it can be taken apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.contract.config import ModelConfig
from trainmaster.errors import ConfigError, unknown
from trainmaster.models.options import DecoderOptions, GPTOptions, LlamaOptions, MoEOptions
from trainmaster.options import read

if TYPE_CHECKING:
    from torch import nn

MODELS: dict[str, type[DecoderOptions]] = {"gpt": GPTOptions, "llama": LlamaOptions, "moe": MoEOptions}


def validate(config: ModelConfig) -> DecoderOptions:
    """The model's options, checked. Raises ConfigError in words."""
    if config.name not in MODELS:
        raise ConfigError(unknown("model.name", config.name, MODELS))
    return read(MODELS[config.name], config.options, "model.options")


def described(config: ModelConfig) -> dict[str, Any]:
    """{name, options}, all of them: what a checkpoint says of the model whose weights it has. Raises ConfigError."""
    return {"name": config.name, "options": validate(config).resolved()}


def check_same(saved: Mapping[str, Any], config: ModelConfig, checkpoint: str) -> None:
    """Raises ConfigError, one sentence a line, if `config` isn't the model `saved` (`described`) of a checkpoint.

    A checkpoint that says nothing of its model passes.
    """
    if not saved:
        return
    options, wanted = validate(config), described(config)
    if saved.get("name") != config.name:
        name = saved.get("name")
        raise ConfigError(f"model.name: is {config.name}, but {checkpoint} was made with {name}; {name} would be right")
    had, made = saved.get("options", {}), f"but {checkpoint} was made with"
    differ = {
        name: f"model.options.{name}: is {value}, {made} {had[name]}; {had[name]} would be right"
        for name, value in wanted["options"].items()
        if name in had and had[name] != value and name not in options.free
    }
    # What was left out follows from what was given, mostly: a wider model has a wider MLP.
    given = [sentence for name, sentence in differ.items() if name in config.options]
    if differ:
        raise ConfigError("\n".join(given or differ.values()))


def build(config: ModelConfig, seed: int, device: Any = None) -> nn.Module:
    """The model with its initial weights on `device` (default: CPU).

    The weights depend on the seed and on each parameter's name, and on nothing else: not on the mesh, not on the
    order of construction, not on torch's global generator. Raises ConfigError.
    """
    options = validate(config)
    from trainmaster.models.initialization import initialize

    model = _model(options)
    initialize(model, seed)
    return model if device is None else model.to(device)


def _model(options: DecoderOptions) -> nn.Module:
    if isinstance(options, MoEOptions):
        from trainmaster.models.moe import MoETransformer

        return MoETransformer(options)
    if isinstance(options, LlamaOptions):
        from trainmaster.models.llama import Llama

        return Llama(options)
    assert isinstance(options, GPTOptions)
    from trainmaster.models.gpt import GPT

    return GPT(options)
