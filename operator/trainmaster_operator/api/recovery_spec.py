"""`spec.recovery`: how many restarts a job may have after failures, and when a silent rank counts as hanging."""

from __future__ import annotations

from enum import Enum

from pydantic import Field

from trainmaster.contract.config import Strict
from trainmaster_operator.api.recovery_rules import RuleSpec

SECONDS = 10**9
"""The largest value of a field in seconds, about thirty years. A clock can add it to any date without an overflow."""


HANG_LIMIT_S = 600
"""Default of `recovery.hang.limitSeconds`, in seconds."""


class HangMode(str, Enum):
    """What the operator does about ranks that hang. Notify includes Observe, and Enforce includes Notify."""

    OFF = "Off"  # Ranks are not watched.
    OBSERVE = "Observe"  # The status and the metrics report the hang.
    NOTIFY = "Notify"  # In addition, a warning event reports it.
    ENFORCE = "Enforce"  # In addition, the ranks are restarted.


class HangSpec(Strict):
    """`spec.recovery.hang`. The operator learns shorter limits than limitSeconds from the run, one each for steps,
    saves and evaluations."""

    limitSeconds: int = Field(
        HANG_LIMIT_S,
        ge=1,
        le=SECONDS,
        description="Number of seconds without any sign of life after which a rank hangs, if its Python stack does "
        "not change either. After a few steps the job learns shorter limits from its own steps, saves and "
        "evaluations. If the value is 600, a script is not watched before its first step, because it may prepare data "
        "until then. If it has another value, a script is watched from its start. The value is a whole number. It is "
        "refused with mode Off. Default: 600.",
    )
    mode: HangMode = Field(
        HangMode.ENFORCE,
        description="What happens to ranks that hang. Enforce: the ranks are restarted. Notify: a warning event "
        "names them. Observe: only status and metrics show them. Off: ranks are not watched, and limitSeconds and "
        "factor must not be set; write it in quotes, because YAML reads Off as false. In every mode a pod whose agent "
        "is silent is still replaced after recovery.agentLostSeconds. Default: Enforce.",
    )
    factor: float = Field(
        3,
        ge=1,
        le=100,
        description="Factor between the longest silence that is expected from earlier steps and the limit after which "
        "a rank hangs. A rank whose Python stack changes hangs only after this factor times limitSeconds. "
        "It is refused with mode Off. Default: 3.",
    )


class StragglerAction(str, Enum):
    """What the operator does about a straggler."""

    NOTIFY = "Notify"
    REPLACE = "Replace"


class StragglerSpec(Strict):
    """`spec.recovery.straggler`: when a rank for which the others wait in every step counts as a straggler."""

    slowdown: float = Field(
        1.5,
        gt=1,
        le=1e6,
        description="A rank is a straggler if it computes at least this many times as long as the median rank. "
        "Default: 1.5.",
    )
    windowSeconds: int = Field(
        60,
        ge=1,
        le=SECONDS,
        description="Number of seconds for which a rank must be a straggler before the action is taken. The value is "
        "a whole number. Default: 60.",
    )
    action: StragglerAction = Field(
        StragglerAction.NOTIFY,
        description="What happens to a straggler. Notify: a warning event names it. Replace: its pod is replaced, "
        "which counts towards recovery.budget.pod. Default: Notify.",
    )


class BudgetSpec(Strict):
    """`spec.recovery.budget`: how many failures are answered with a restart. Evictions and suspends are free."""

    inPlace: int = Field(
        10,
        ge=0,
        le=10_000,
        description="Number of restarts of processes in their pods that are allowed within windowSeconds. Default: 10.",
    )
    pod: int = Field(
        5,
        ge=0,
        le=10_000,
        description="Number of replacements of a pod that are allowed within windowSeconds. Default: 5.",
    )
    full: int = Field(
        2,
        ge=0,
        le=10_000,
        description="Number of restarts of all pods that are allowed within windowSeconds. When this budget is "
        "exhausted too, the job fails, or shrinks if workers.min allows it. Default: 2.",
    )
    windowSeconds: int = Field(
        3600,
        ge=1,
        le=SECONDS,
        description="Number of seconds after which a restart no longer counts towards the budget. Evictions, "
        "suspensions and changes of the size never count. The value is a whole number. Default: 3600.",
    )
    perCause: int = Field(
        3,
        ge=1,
        le=10_000,
        description="Number of restarts for the same cause without a completed step after which a larger restart is "
        "tried. Default: 3.",
    )


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


class NodesSpec(Strict):
    """`spec.recovery.nodes`: how the job treats nodes on which this job or others failed recently."""

    avoid: bool = Field(
        True,
        description="If true, new pods avoid nodes that failed several times or whose hardware failed. At most a "
        "limited share of all nodes is avoided, and only while the pods find other places. Default: true.",
    )


class RecoverySpec(Strict):
    """`spec.recovery`: what happens after a failure."""

    rules: list[RuleSpec] = Field(
        default_factory=list,
        max_length=32,
        description="What happens after certain failures. The first rule that matches a failure decides. If no rule "
        "matches, the smallest restart that can help is tried first: the processes, then the pod, then "
        "all pods. Default: no rules.",
    )
    budget: BudgetSpec = Field(
        default_factory=BudgetSpec, description="How many restarts the job may have before it fails."
    )
    hang: HangSpec = Field(
        default_factory=HangSpec, description="How ranks that hang are found, and what happens to them."
    )
    straggler: StragglerSpec = Field(
        default_factory=StragglerSpec,
        description="How a rank is found that is much slower than the others, and what happens to its pod.",
    )
    elastic: ElasticSpec = Field(
        default_factory=ElasticSpec, description="When a job with workers.min shrinks, and when it grows again."
    )
    nodes: NodesSpec = Field(
        default_factory=NodesSpec, description="How the job treats nodes on which jobs have failed."
    )
    zygote: bool = Field(
        True,
        description="If true, ranks are forked from a process that has already imported their modules, which makes "
        "restarts faster. Set it to false for scripts that cannot be forked after their imports. Default: "
        "true.",
    )
    agentLostSeconds: int = Field(
        20,
        ge=1,
        le=SECONDS,
        description="Number of seconds without a report after which the agent of a pod is considered lost and the "
        "pod is replaced, whatever recovery.hang.mode is. The value is a whole number. Default: 20.",
    )
