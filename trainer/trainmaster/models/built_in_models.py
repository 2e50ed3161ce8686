"""The built-in models by name, and how the model of a config is checked and built. Only `build` imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmaster.contract.config import ModelConfig
from trainmaster.errors import ConfigError, unknown
from trainmaster.models import user_model
from trainmaster.models.model_facts import Facts
from trainmaster.models.model_options import BertOptions, CNNOptions, GPTOptions, LlamaOptions, ModelOptions, MoEOptions
from trainmaster.models.strict_options import read

if TYPE_CHECKING:
    from torch import nn

    from trainmaster.models.initialization import Stds

MODELS: dict[str, type[ModelOptions]] = {
    "bert": BertOptions,
    "cnn": CNNOptions,
    "gpt": GPTOptions,
    "llama": LlamaOptions,
    "moe": MoEOptions,
}


def validate(config: ModelConfig) -> ModelOptions:
    """Return the model's options. Raises ConfigError, in a sentence, for a model or an option that is not known.

    For a user's own model, only what is known without importing it is checked.
    """
    if user_model.is_own(config.name):
        user_model.check_name(config.name)
        return read(user_model.OwnOptions, config.options, "model.options")
    if config.name not in MODELS:
        raise ConfigError(unknown("model.name", config.name, MODELS))
    return read(MODELS[config.name], config.options, "model.options")


def build(config: ModelConfig, seed: int, device: Any = None) -> nn.Module:
    """Return the model with its initial weights on `device` (default: CPU).

    The weights depend only on the seed and on the name of each parameter: not on the mesh, the order of construction,
    or torch's global generator. A user's own model initializes its weights itself, with that generator set to the seed.
    Raises ConfigError.
    """
    options = validate(config)
    if isinstance(options, user_model.OwnOptions):
        model = user_model.module(config.name, options, seed)
    else:
        from trainmaster.models.initialization import WithoutDraws, initialize

        with WithoutDraws():
            model = module(options)
        initialize(model, seed)
    return model if device is None else model.to(device)


def build_undrawn(config: ModelConfig, seed: int, device: Any) -> tuple[nn.Module, Stds]:
    """Return (model on `device`, {name: standard deviation} of the parameters that have no values yet).

    Those parameters are NaN: a checkpoint or `initialization.drawn` must set them. Buffers have their values. A user's
    own model initializes its weights itself, so none is left without values. Raises ConfigError.
    """
    options = validate(config)
    if isinstance(options, user_model.OwnOptions):
        return build(config, seed, device), {}
    import torch

    from trainmaster.models.initialization import WithoutDraws, stds_of

    with WithoutDraws():
        model = module(options)
    for parameter in model.parameters():
        # What is not drawn need not be copied to the device either.
        parameter.data = torch.full_like(parameter.data, torch.nan, device=device)
    return model.to(device), stds_of(model)


def facts(config: ModelConfig) -> Facts:
    """Return what the data and the layout must know of the model. Raises ConfigError."""
    return validate(config).facts(config.name)


def module(options: ModelOptions) -> nn.Module:
    """Return the model on torch's default device, in its default dtype and with the initial weights of its layers."""
    if isinstance(options, MoEOptions):
        from trainmaster.models.moe_router_and_balance import MoETransformer

        return MoETransformer(options)
    if isinstance(options, LlamaOptions):
        from trainmaster.models.llama import Llama

        return Llama(options)
    if isinstance(options, CNNOptions):
        from trainmaster.models.cnn import CNN

        return CNN(options)
    if isinstance(options, BertOptions):
        from trainmaster.models.bert import Bert

        return Bert(options)
    assert isinstance(options, GPTOptions)
    from trainmaster.models.gpt import GPT

    return GPT(options)
