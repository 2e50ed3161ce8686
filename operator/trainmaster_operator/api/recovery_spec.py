"""`spec.recovery`: what happens after a failure, and how many restarts a job may have."""

from __future__ import annotations

from pydantic import Field

from trainmaster.contract.config import Strict
from trainmaster_operator.api.elastic_spec import ElasticSpec
from trainmaster_operator.api.hang_and_straggler_spec import HangSpec, StragglerSpec
from trainmaster_operator.api.quantities import SECONDS
from trainmaster_operator.api.recovery_rules import RuleSpec


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
        description="What happens after certain failures. A rule matches a failure if all of its conditions hold, and "
        "the first rule that matches decides. If no rule matches, the smallest restart that can help is tried "
        "first: the processes, then the pod, then all pods. Default: no rules.",
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
