"""`spec.recovery.rules`: rules by which a user replaces the default answer to a failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from trainmaster.contract.config import Strict
from trainmaster_operator.api import rule_pattern


class RuleAction(str, Enum):
    """What a rule does after a failure that it matches. The description of the field `action` explains each value."""

    RESTART_IN_PLACE = "RestartInPlace"
    REPLACE_POD = "ReplacePod"
    RESTART_ALL = "RestartAll"
    RESTART_WITHOUT_COUNTING = "RestartWithoutCounting"
    SHRINK = "Shrink"
    SKIP_DATA = "SkipData"
    HOLD = "Hold"
    FAIL = "Fail"


RuledCause = Literal[
    "Crash",
    "OutOfMemory",
    "Hang",
    "Straggler",
    "HardwareFault",
    "Evicted",
    "NodeLost",
    "AgentLost",
    "Diverged",
    "DataError",
    "ConfigError",
    "Refused",
    "Preempted",
    "StoreLost",
    "Fenced",
    "CheckpointFailed",
]
"""The causes that a rule can name. Causes of pods that do not start (ImageError, Unschedulable) are missing:
pendingDeadlineSeconds handles them."""

NEEDS_ANOTHER_POD = ("HardwareFault", "Evicted", "NodeLost", "AgentLost", "Refused")


class RuleSpec(Strict):
    """One rule. The first rule that matches a failure decides. A rule without conditions matches every failure that the
    job itself caused."""

    name: Annotated[str, Field(max_length=63)] = Field(
        "", description="The name of the rule in events. Default: its position, such as recovery.rules[0]."
    )
    causes: list[RuledCause] = Field(
        default_factory=list,
        max_length=len(get_args(RuledCause)),
        # kubectl explain does not show the values that entries of a list may have, so the description names them.
        description=f"The causes of failures that the rule matches: {', '.join(get_args(RuledCause))}. Most names say "
        "what happened. Crash: a rank ended, and no other cause is known. AgentLost: the agent of a pod ended or is "
        "silent. Evicted and Preempted: a pod was told to end. Refused: a node rejected a pod or could not start it. "
        "StoreLost: the store at which ranks meet is gone. Fenced: a later round of the job has begun. "
        "docs/failures.md describes all of them. Default: all causes except Evicted, Preempted, NodeLost, "
        "Refused, StoreLost and Fenced.",
    )
    exitCodes: list[Annotated[int, Field(ge=1, le=255)]] = Field(
        default_factory=list,
        max_length=64,
        description="The exit codes that the rule matches, from 1 to 255. What counts is the exit code of the rank "
        "that failed first, not of ranks that failed because they lost it. Most exit codes have "
        "the cause Crash. A rank that was ended by signal n "
        "has the exit code 128 + n, for example 137 after SIGKILL. Default: all exit codes.",
    )
    message: Annotated[str, Field(min_length=1, max_length=rule_pattern.LIMIT)] | None = Field(
        None,
        description="A regular expression that must be found in the last message, traceback or output of the rank, "
        "for example 'NCCL .* timeout'. Counts in braces, back-references, look-around and groups inside "
        f"{rule_pattern.NESTED} others are refused. Default: all messages.",
    )
    action: RuleAction = Field(
        description="What happens after a failure that the rule matches. RestartInPlace, ReplacePod and RestartAll "
        "restart the processes, the pod or all pods; they count towards recovery.budget, and the next "
        "larger one follows when a budget is exhausted. RestartWithoutCounting restarts without a limit. "
        "Shrink continues with fewer pods and needs workers.min. SkipData continues without the samples "
        "of the step that diverged; it needs causes: [Diverged] and framework Trainmaster. Hold stops the "
        "ranks and keeps the pods until somebody suspends and resumes the job. Fail ends the "
        "job at once, in the phase Failed."
    )

    @field_validator("message")
    @classmethod
    def _is_a_pattern(cls, message: str | None) -> str | None:
        if message is not None:
            rule_pattern.pattern(message)
        return message

    @model_validator(mode="after")
    def _can_be_done(self) -> RuleSpec:
        if self.action is RuleAction.SKIP_DATA and self.causes != ["Diverged"]:
            raise ValueError(
                "SkipData needs causes: [Diverged], because only for this cause the samples to skip are known"
            )
        if self.action is RuleAction.RESTART_IN_PLACE:
            gone = [cause for cause in self.causes if cause in NEEDS_ANOTHER_POD]
            if gone:
                raise ValueError(
                    f"RestartInPlace cannot recover from {gone[0]}, which needs another pod; use ReplacePod"
                )
        return self


def unfit(rules: Sequence[RuleSpec], *, own_loop: bool, least: int | None) -> Iterator[tuple[int, str]]:
    """Yield the index of each rule that this job cannot apply, and the reason. `own_loop`: the framework is
    Trainmaster. `least`: workers.min."""
    for number, rule in enumerate(rules):
        if rule.action is RuleAction.SKIP_DATA and not own_loop:
            yield number, "SkipData needs framework Trainmaster, because the samples of a script are not known"
        if rule.action is RuleAction.SHRINK and least is None:
            yield number, "Shrink needs workers.min, the smallest number of pods with which the job continues"
