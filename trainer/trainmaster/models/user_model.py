"""A user's own model: `model.name: "module:function"`. Its module is imported only when a rank builds it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field

from trainmaster.errors import ConfigError
from trainmaster.models.model_facts import Facts
from trainmaster.models.model_options import ModelOptions

if TYPE_CHECKING:
    from torch import nn


class OwnOptions(ModelOptions):
    """Any options. Three of them tell the data which samples to make; the others are for the user's function."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    context: int = Field(ge=1, le=2**24, description="Tokens of a sample.")
    vocabulary: int = Field(256, ge=2, le=2**24, description="Tokens that the model knows.")
    mask_token: int | None = Field(None, ge=0, description="The number of [MASK], of a model that tells masked tokens.")

    def facts(self, name: str) -> Facts:
        masked = self.mask_token is not None
        return Facts(
            name,
            layers=0,
            heads=0,
            kv_heads=0,
            hidden=0,
            vocabulary=self.vocabulary,
            context=self.context,
            objective="MaskedTokens" if masked else "NextToken",
            mask_token=self.mask_token,
            known=False,
        )


def is_own(name: str) -> bool:
    """Return True if the name is that of a user's own model."""
    return ":" in name


def check_name(name: str) -> None:
    """Raise ConfigError if `name` cannot be that of a function in a module."""
    module, _, function = name.partition(":")
    if not (function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"model.name: {name!r} isn't module:function, such as my_package.models:build")


def module(name: str, options: OwnOptions, seed: int) -> nn.Module:
    """Return the module that the function makes of the options, a dict. Raises ConfigError if it is no nn.Module.

    torch's global generator is set to the seed, so that all ranks have the same initial weights.
    """
    import torch

    check_name(name)
    path, _, function = name.partition(":")
    try:
        found: Any = importlib.import_module(path)
    except (ImportError, SyntaxError) as error:
        raise ConfigError(
            f"model.name: module {path} can't be imported ({error}); it must be on the image's PYTHONPATH"
        ) from error
    build = getattr(found, function, None)
    if not callable(build):
        what = "has no" if build is None else "has no callable"
        raise ConfigError(f"model.name: module {path} {what} {function}; a function of it would be right")
    torch.manual_seed(seed)
    model = build(options.resolved())
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"model.name: {name} returned a {type(model).__name__}; a torch.nn.Module would be right, from tokens "
            f"[B, T] to logits [B, T, V]"
        )
    return model
