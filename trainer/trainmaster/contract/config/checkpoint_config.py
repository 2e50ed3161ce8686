"""The fields of `spec.checkpoint` that the trainer reads: how often it saves, and which checkpoints it keeps."""

from __future__ import annotations

from pydantic import Field

from trainmaster.contract.config.config_model import STEPS, Grown


class CheckpointConfig(Grown):
    """How many steps lie between two checkpoints, and which checkpoints are kept on storage."""

    since = frozenset({"keepBest"})

    every: int = Field(
        50,
        ge=1,
        le=STEPS,
        description="Number of steps between two checkpoints on storage. The last step is always saved. It is refused "
        "for scripts, which decide themselves when they save. Default: 50.",
    )
    keep: int = Field(
        3,
        ge=1,
        le=1000,
        description="Number of complete checkpoints that are kept on storage. When there are more, the oldest are "
        "deleted. It is refused for scripts. Default: 3.",
    )
    keepBest: bool = Field(
        False,
        description="If true, each step whose evaluation loss is the lowest so far is saved, and this checkpoint is "
        "kept, in addition to those of checkpoint.keep, until another step has a lower loss. It lies in the "
        "checkpoint directory with the others, in a folder named after its step. The file manifest.json of the "
        "newest checkpoint names this step as evaluation.best_step, and its loss as evaluation.best. It needs "
        "training.evaluation, and it is refused for scripts. Default: false.",
    )
