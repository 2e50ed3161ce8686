"""Models, whose code does not know of parallelism. The import of this package imports no torch; `build` does.

A model is an `nn.Module` with `forward(tokens[B, T] int64) -> logits[B, T, V]` and a `plan`
(`parallel.model_plan.Plan`), which says how it can be divided.
"""

from __future__ import annotations

from trainmaster.contract.config import ModelConfig
from trainmaster.models.built_in_models import MODELS, build, build_undrawn, facts, module, validate
from trainmaster.models.model_of_checkpoint import check_same, described
from trainmaster.models.model_options import ModelOptions

__all__ = [
    "MODELS",
    "ModelConfig",
    "ModelOptions",
    "build",
    "build_undrawn",
    "check_same",
    "described",
    "facts",
    "module",
    "validate",
]
