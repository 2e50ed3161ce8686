"""The fields of `training.divergence`: when a step counts as diverged."""

from __future__ import annotations

from pydantic import Field

from trainmaster.contract.config.config_model import Grown


class DivergenceConfig(Grown):
    """When a step counts as diverged although no rank has failed. A loss that is not finite always does."""

    since = frozenset({"normSpikeFactor"})

    spikeFactor: float | None = Field(
        None,
        gt=1,
        le=1e6,
        description="A step has diverged if its loss is greater than this many times the median of the window. "
        "Default: losses are not compared.",
    )
    normSpikeFactor: float | None = Field(
        None,
        gt=1,
        le=1e6,
        description="A step has diverged if the norm of its gradients before clipping is greater than this many times "
        "the median of the window. Default: norms are not compared.",
    )
    window: int = Field(
        100,
        ge=4,
        le=1000,
        description="Number of earlier steps that a step is compared with. No step is compared until this many steps "
        "are completed. It is refused if neither spikeFactor nor normSpikeFactor is set. Default: 100.",
    )
