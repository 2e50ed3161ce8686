"""The fields of `training.evaluation`: the evaluations, and when one of them ends a run early."""

from __future__ import annotations

from pydantic import Field

from trainmaster.contract.config.config_model import STEPS, Strict
from trainmaster.contract.config.model_and_data_config import DataConfig


class EarlyStopConfig(Strict):
    """When a run ends before its last step because the evaluation loss no longer improves."""

    patience: int = Field(
        ge=1,
        le=2**31,
        description="Number of evaluations in a row without an improvement after which the run ends with success. "
        "The count continues after a restart.",
    )
    minDelta: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="A loss is an improvement only if it is lower than the loss of the last improvement by more than "
        "this value. Default: 0.0.",
    )


class EvaluationConfig(Strict):
    """How often, and on which data, the loss is computed without training on it."""

    every: int = Field(
        ge=1, le=STEPS, description="Number of steps between two evaluations. The last step is always evaluated."
    )
    data: DataConfig = Field(description="The data that the loss is computed on.")
    samples: int | None = Field(
        None,
        ge=1,
        le=STEPS,
        description="Number of sequences in an evaluation; they are the same each time. Default: all sequences of the "
        "data.",
    )
    stop: EarlyStopConfig | None = Field(
        None,
        description="When the run ends before its last step, because the loss no longer improves. Default: the run "
        "continues to its last step.",
    )
