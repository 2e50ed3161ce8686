"""`spec.recovery`: what a failure is worth, and when silence is one."""

from __future__ import annotations

from enum import Enum

from pydantic import Field

from trainmaster.contract.config import Strict
from trainmaster_operator.api.rules import RuleSpec

SECONDS = 10**9
"""The longest time that a field can say, in whole seconds: thirty years, which a clock can add to any date."""


HANG_LIMIT_S = 600
"""The default of `recovery.hang.limitSeconds`."""


class HangMode(str, Enum):
    OFF = "Off"  # nothing is watched
    OBSERVE = "Observe"  # the status and the metrics tell
    NOTIFY = "Notify"  # and an event
    ENFORCE = "Enforce"  # and the ranks restart


class HangSpec(Strict):
    """Shorter limits than this one are learned from the run: steps, saves and evaluations each have their own."""

    limitSeconds: int = Field(
        HANG_LIMIT_S,
        ge=1,
        le=SECONDS,
        description="Ranks that say nothing for so long, and whose Python stacks stand still, are stuck. Where more is "
        "known of a run, less is enough. With the default, 600, a script of your own is never stuck before it has "
        "completed a step of an optimizer, since it may evaluate or prepare data; any other value holds from the "
        "start.",
    )
    mode: HangMode = Field(
        HangMode.ENFORCE,
        description="What happens to stuck ranks. Enforce: a restart; Notify: an event; Observe: nothing; Off: nothing "
        "is watched.",
    )
    factor: float = Field(
        3,
        ge=1,
        le=100,
        description="How many times the longest silence that is to be expected after what was seen counts as stuck. "
        "A rank whose stack moves has so many times limitSeconds.",
    )


class StragglerAction(str, Enum):
    NOTIFY = "Notify"
    REPLACE = "Replace"


class StragglerSpec(Strict):
    """A rank that the others wait for, step after step."""

    slowdown: float = Field(
        1.5,
        gt=1,
        le=1e6,
        description="It counts as a straggler when it computes so many times as long as the median rank.",
    )
    windowSeconds: int = Field(60, ge=1, le=SECONDS, description="It must have been so for so long.")
    action: StragglerAction = Field(
        StragglerAction.NOTIFY, description="Notify: an event. Replace: its pod is replaced, within the budget."
    )


class BudgetSpec(Strict):
    """How many failures are worth a restart. Evictions and suspends are free."""

    inPlace: int = Field(10, ge=0, le=10_000, description="Restarts of processes, within the window.")
    pod: int = Field(5, ge=0, le=10_000, description="Replacements of pods, within the window.")
    full: int = Field(2, ge=0, le=10_000, description="Restarts of all pods, within the window.")
    windowSeconds: int = Field(3600, ge=1, le=SECONDS, description="Restarts older than this no longer count.")
    perCause: int = Field(
        3, ge=1, le=10_000, description="Restarts for the same cause without a step of progress, before a higher rung."
    )


class ElasticSpec(Strict):
    """With `workers.min`: when a job goes on with fewer pods, and when it takes more again."""

    waitSeconds: int = Field(
        30,
        ge=0,
        le=SECONDS,
        description="How long a round waits for pods that don't come before it opens with fewer.",
    )
    cooldownSeconds: int = Field(
        60,
        ge=0,
        le=SECONDS,
        description="How long a job stays at the smaller size at least before it takes pods that came back.",
    )


class NodesSpec(Strict):
    """Nodes that failed this job or others lately."""

    avoid: bool = Field(
        True,
        description="New pods keep away from nodes that failed again and again, or whose hardware did: a share of all "
        "nodes at most, and only while other places are found.",
    )


class RecoverySpec(Strict):
    rules: list[RuleSpec] = Field(
        default_factory=list,
        max_length=32,
        description="What is done about failures: the first that fits one decides; where none fits, restarts do, the "
        "smallest first. RestartInPlace, ReplacePod and RestartAll count in the budget, and the next of them follows "
        "when it is spent; RestartWithoutCounting has no limit. Shrink goes on with fewer pods. SkipData leaves out "
        "the samples of a step that diverged. Hold stops the ranks and keeps the pods until a person suspends and "
        "resumes the job. Fail ends it.",
    )
    budget: BudgetSpec = Field(default_factory=BudgetSpec)
    hang: HangSpec = Field(default_factory=HangSpec)
    straggler: StragglerSpec = Field(default_factory=StragglerSpec)
    elastic: ElasticSpec = Field(default_factory=ElasticSpec)
    nodes: NodesSpec = Field(default_factory=NodesSpec)
    zygote: bool = Field(True, description="Fork ranks from a process that has imported what they need.")
    agentLostSeconds: int = Field(20, ge=1, le=SECONDS, description="Silence after which a pod's agent counts as dead.")
