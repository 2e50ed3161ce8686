"""What a checkpoint says about its model, and the refusal of a config with another model. It imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.contract.config import ModelConfig
from trainmaster.errors import ConfigError
from trainmaster.models import user_model
from trainmaster.models.built_in_models import validate


def described(config: ModelConfig) -> dict[str, Any]:
    """Return {name, options} with all options, as a checkpoint describes the model. Raises ConfigError."""
    return {"name": config.name, "options": validate(config).resolved()}


def check_same(saved: Mapping[str, Any], config: ModelConfig, checkpoint: str) -> None:
    """Raise ConfigError, with one sentence per line, if `config` is not the model `saved` of a checkpoint.

    `saved` comes from `described`. A checkpoint that does not describe its model passes.
    """
    if not saved:
        return
    options = validate(config)
    if saved.get("name") != config.name:
        name = saved.get("name")
        raise ConfigError(f"model.name: is {config.name}, but {checkpoint} was made with {name}; {name} would be right")
    if user_model.is_own(config.name):
        return  # only the model knows which options its weights depend on; a shape that differs is refused on loading
    had, made = {**options.later, **saved.get("options", {})}, f"but {checkpoint} was made with"
    differ = {
        name: f"model.options.{name}: is {value}, {made} {had[name]}; {had[name]} would be right"
        for name, value in {**options.later, **options.resolved()}.items()
        if name in had and had[name] != value and name not in options.free
    }
    # What was left out follows from what was given, mostly: a wider model has a wider MLP.
    given = [sentence for name, sentence in differ.items() if name in config.options]
    if differ:
        raise ConfigError("\n".join(given or differ.values()))
