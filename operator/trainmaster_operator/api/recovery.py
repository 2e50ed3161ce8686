"""`spec.recovery`: what a failure is worth, and when silence is one."""

from __future__ import annotations

from pydantic import Field

from trainmaster.contract.config import Strict


class HangSpec(Strict):
    limitSeconds: float | None = Field(
        600, gt=0, description="A rank that says nothing for so long while training is stuck. null: no limit."
    )


class BudgetSpec(Strict):
    """How many failures are worth a restart. Evictions and suspends are free."""

    inPlace: int = Field(10, ge=0, le=10_000, description="Restarts of processes, within the window.")
    pod: int = Field(5, ge=0, le=10_000, description="Replacements of pods, within the window.")
    full: int = Field(2, ge=0, le=10_000, description="Restarts of all pods, within the window.")
    windowSeconds: float = Field(3600, gt=0, description="Restarts older than this no longer count.")
    perCause: int = Field(
        3, ge=1, le=10_000, description="Restarts for the same cause without a step of progress, before a higher rung."
    )


class RecoverySpec(Strict):
    budget: BudgetSpec = Field(default_factory=BudgetSpec)
    hang: HangSpec = Field(default_factory=HangSpec)
    zygote: bool = Field(True, description="Fork ranks from a process that has imported what they need.")
    agentLostSeconds: float = Field(20, gt=0, description="Silence after which a pod's agent counts as dead.")
