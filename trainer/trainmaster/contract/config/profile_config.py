"""The fields of `training.profile`: which steps are recorded for a profile."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from trainmaster.contract.config.config_model import STEPS, Strict


class ProfileConfig(Strict):
    """Which steps every rank records. One page is made of all recordings."""

    steps: tuple[Annotated[int, Field(ge=1, le=STEPS)], Annotated[int, Field(ge=1, le=STEPS)]] = Field(
        description="The first and the last step that are recorded. They are at most 100 steps, and the last one must "
        "not be greater than training.steps."
    )

    @model_validator(mode="after")
    def _in_order(self) -> ProfileConfig:
        first, last = self.steps
        if not first <= last < first + 100:
            raise ValueError(
                f"steps [{first}, {last}]: the first and the last of at most 100 steps are expected, in this order"
            )
        return self
