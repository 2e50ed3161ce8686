"""`spec.recovery.elastic`: when a job whose size may change shrinks, and when it grows again."""

from __future__ import annotations

from pydantic import Field

from trainmaster.contract.config import Strict
from trainmaster_operator.api.quantities import SECONDS


class ElasticSpec(Strict):
    """`spec.recovery.elastic`: when a job whose size may change continues with fewer pods, and when it takes more pods
    again."""

    waitSeconds: int = Field(
        30,
        ge=0,
        le=SECONDS,
        description="Number of seconds for which the job waits for missing pods before it starts or continues with "
        "fewer pods. Before it grows to a size that is still below workers.replicas, it also waits this number of "
        "seconds for further pods. It is refused if neither workers.min nor workers.max is set. The value is a "
        "whole number. Default: 30.",
    )
    cooldownSeconds: int = Field(
        60,
        ge=0,
        le=SECONDS,
        description="Number of seconds for which a job that shrank keeps its size before it uses more pods again. It "
        "is refused if neither workers.min nor workers.max is set. The value is a whole number. Default: 60.",
    )
