"""The state of one job in a few KB: together with the reports of agents, it is all that a restarted operator needs.

The planner works on this flat record and never changes one in place. `status_mapping` writes it into the groups of the
API's status and reads it back, so a change of the API concerns that module and no policy. Times are RFC 3339 in UTC
with milliseconds, or "" for no time; losses are strings, because NaN is not JSON.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trainmaster_operator.api.status_terms import JobPhase, Rung

__all__ = [
    "CheckpointStatus",
    "Condition",
    "FailedSave",
    "Failure",
    "JobPhase",
    "JobState",
    "Pause",
    "ProgressStatus",
    "Recovery",
    "ReleasedStatus",
    "Restarts",
    "Rung",
    "Spent",
    "Straggler",
    "Suspicion",
    "WorkersStatus",
]


class Loose(BaseModel):
    """Base class of these models. It ignores unknown fields."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True, use_enum_values=False)


class Condition(Loose):
    """A condition of the job. Other programs may have set it, so it has the limits of the API, not those of our own
    messages."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str  # Never empty.
    message: str = Field("", max_length=32768)
    lastTransitionTime: str = ""
    observedGeneration: int = 0  # The generation of the spec for which the condition was found.


class WorkersStatus(Loose):
    """The pods of the job. `replicas`: the number of pods whose ranks form the world of the open round, or of the
    previous one if none is open. Spares are not counted."""

    desired: int = 0  # The target for `replicas` that the spec gives.
    replicas: int = 0
    ready: int = 0  # Number of these pods whose agent is connected.
    spares: int = 0  # Number of spares whose agent is connected.
    selector: str = ""
    # The smallest values that workers.replicas may have.
    legalSizes: list[int] = Field(default_factory=list, max_length=64)
    resizedAt: str = ""  # The time at which `replicas`, or its target, last changed.
    shrunkAt: str = ""  # The time since which `replicas` is below its target because pods are missing; "" if it is not.
    # The incarnation of a slot that is added: higher than that of every slot that was removed.
    nextIncarnation: int = 0
    replacedAt: str = ""  # The time at which a pod without a rank was last replaced.
    replacements: int = 0  # Number of such replacements in succession.


class ReleasedStatus(Loose):
    """Pods that were given back because others found no place. None as soon as all pods had a place."""

    times: int
    retryAt: str = ""


class GateStatus(Loose):
    """Scheduling gates that held back pods since the run began. None if there was no gate."""

    since: str = ""  # The time since which a gate holds back pods; "" if no gate does so now.
    until: str = ""  # The time at which the last gate was removed.
    seconds: float = 0.0  # Number of seconds for which gates held back pods, without the time after `since`.


class ProgressStatus(Loose):
    """How far the training is, and how fast it proceeds."""

    step: int = 0
    totalSteps: int = 0
    loss: str = ""
    # The highest step ever reached. `step` becomes lower when a round resumes from an earlier checkpoint.
    highestStep: int = 0
    lastSave: int = 0  # The step after which a script last called torch.save; 0 if it never did.
    memoryStep: int = 0  # The newest step of this round that is in the memory of all pods; 0 if there is none.
    stepsPerSecond: float = 0.0  # A smoothed value.
    tokensPerSecond: float = 0.0
    etaSeconds: float | None = None
    updatedAt: str = ""


class CheckpointStatus(Loose):
    """The newest checkpoint on storage."""

    step: int
    round: int
    tier: str = "storage"
    time: str = ""


class FailedSave(Loose):
    """The newest checkpoint that could not be written to storage."""

    step: int
    round: int
    message: str = Field("", max_length=1024)
    time: str = ""


class Restarts(Loose):
    """Number of restarts by rung."""

    inPlace: int = 0
    pod: int = 0
    full: int = 0
    shrink: int = 0
    free: int = 0

    @property
    def total(self) -> int:
        """Number of restarts after failures. Restarts of rung `free` have other reasons and are not included."""
        return self.inPlace + self.pod + self.full + self.shrink


class Spent(Loose):
    """A restart that uses the budget, with what is needed to check the window and the limit per cause."""

    time: str
    rung: Rung
    cause: str
    step: int = 0  # The highest step of the job at that time. A higher step clears the cause; -1: the cause is cleared.
    count: int = 1  # Number of restarts that this entry stands for. Old entries are merged if there are many.


class Failure(Loose):
    """The last failure of the job."""

    cause: str
    rank: int | None = None
    pod: str = ""
    node: str = ""
    exitCode: int | None = None
    signal: str = ""
    message: str = Field("", max_length=4096)
    traceback: str = Field("", max_length=8192)
    step: int = 0
    round: int = 0
    time: str = ""
    rule: str = ""  # The rule of spec.recovery.rules that decided what was done; "" if the defaults decided.


class Recovery(Loose):
    """One recovery and how long each of its phases took, in seconds. It is open until the first step of the new
    round."""

    round: int  # The round that the recovery opened.
    cause: str
    rung: Rung
    rank: int | None = None
    pod: str = ""
    step: int = 0  # The highest step before the failure.
    resumedStep: int | None = None
    tier: str = ""  # Where the ranks found that step: ram, peer (the memory of another pod) or storage.
    lostSteps: int | None = None
    startedAt: str = ""
    totalSeconds: float | None = None
    overtaken: bool = False  # True if the job ended or stopped before the new round completed a step.
    clock: dict[str, float] = Field(default_factory=dict)  # Seconds by phase: detect, decide, drain, ... first_step.


class Totals(Loose):
    """What has happened to the job since it was created, for metrics. It is needed because `recoveries` keeps only
    the last few recoveries."""

    # Number of failures by cause, free ones included.
    failures: dict[str, int] = Field(default_factory=dict, max_length=32)
    recoveries: int = 0  # Number of failures after which the job completed a step again.
    lostSteps: int = 0
    phases: dict[str, float] = Field(default_factory=dict, max_length=16)  # Seconds by phase of a recovery's clock.
    setAside: dict[str, float] = Field(default_factory=dict, max_length=4)
    """Seconds of `lost` that metrics report under a category of their own and not by cause."""
    told: dict[str, float] = Field(default_factory=dict, max_length=16)
    """Seconds by category that metrics have already reported, because a counter must not decrease."""


class Pause(Loose):
    """How long ranks are silent in one phase, in seconds. The limits of silence are learned from it."""

    count: int = 0
    typical: float = 0.0
    longest: float = 0.0  # It becomes lower with time.
    total: float = 0.0  # The sum over this round, of the slowest rank.


class Suspicion(Loose):
    """Ranks that may hang, while the operator looks into it. It is valid only for `round`."""

    round: int
    rank: int
    slot: int
    pod: str = ""
    phase: str = ""
    step: int = 0
    limitSeconds: float = 0.0
    since: str = ""
    confirmed: bool = False  # True if the ranks hang and `recovery.hang.mode` says to leave them as they are.
    message: str = Field("", max_length=1024)
    traceback: str = Field("", max_length=4096)


class Straggler(Loose):
    """The rank for which the other ranks of `round` wait."""

    round: int
    rank: int
    pod: str = ""
    node: str = ""
    computeSeconds: float = 0.0  # Seconds of a step without the time in which the rank waits for others.
    usualSeconds: float = 0.0  # The median of the same number over the other ranks.
    since: str = ""
    told: bool = False  # True if an event was written, because the rank was slow for long enough.


class JobState(Loose):
    """The state of one job. The planner returns a changed copy of it."""

    observedGeneration: int = 0
    phase: JobPhase = JobPhase.PENDING
    leaderEpoch: int = 0

    round: int = 0
    # The slots of the open round in rank order, as ranges; while a round forms, those of the previous round.
    roundMap: str = ""
    roundMinor: int = 0  # Number of rounds up to this one that agents opened while no leader answered.
    roundStore: str = ""  # host:port of the store of the round; "" while the round forms.
    roundPods: str = ""  # A checksum of the uids of the pods in the round, in the order of the map.
    roundOpenedAt: str = ""  # While the round forms: the time since which it forms.
    roundPeers: int = 0  # The distance in the map to the slot that keeps the copy of a slot's memory; 0: no copies.
    roundLastSave: int = 0  # The value of progress.lastSave when the previous round ended.
    roundSavedFrom: int = 0  # The step from which the processes of the previous round counted their steps.
    roundResume: str = ""  # What the ranks resume from: Auto, Never or a path.
    lastStore: str = ""  # The stores of the last rounds that were open, newest first. They are never used again.
    incarnations: str = ""  # The incarnation of each slot, run-length encoded: "0*4".
    revision: str = ""  # The ControllerRevision from which all pods of this run are made.
    # The different revisions of the last runs, newest first.
    revisions: list[str] = Field(default_factory=list, max_length=3)
    restartObeyed: int = 0  # The highest spec.restart for which a run has begun.
    avoidNodes: list[str] = Field(default_factory=list, max_length=32)  # The nodes that new pods avoid.
    # True if pods that avoided nodes found no place. Then no pod avoids nodes until a round opens.
    avoidedInVain: bool = False
    stopAt: int | None = None
    stopBound: bool = False
    microDivisor: int = 1  # The divisor of the micro-batch after a device ran out of memory.
    # Skipped ranges [first, end) in the order of the data.
    skipped: list[list[int]] = Field(default_factory=list, max_length=32)

    startTime: str = ""
    completionTime: str = ""
    workers: WorkersStatus = Field(default_factory=WorkersStatus)
    released: ReleasedStatus | None = None
    gates: GateStatus | None = None
    progress: ProgressStatus = Field(default_factory=ProgressStatus)
    checkpoint: CheckpointStatus | None = None
    failedSave: FailedSave | None = None  # It is kept after a newer checkpoint was saved.
    restarts: Restarts = Field(default_factory=Restarts)
    spent: list[Spent] = Field(default_factory=list, max_length=64)
    lastFailure: Failure | None = None
    recoveries: list[Recovery] = Field(default_factory=list, max_length=16)
    totals: Totals | None = None  # None until the first failure.
    pauses: dict[str, Pause] = Field(default_factory=dict)  # Keys: step, save, eval.
    pausesRound: int = 0  # The round whose ranks last reported pauses.
    suspicion: Suspicion | None = None
    straggler: Straggler | None = None
    # The time of the job's first step. Goodput is counted from then on, except while the job is suspended.
    firstStepAt: str = ""
    accountedAt: str = ""  # The time up to which all time is counted as useful or lost.
    usefulSeconds: float = 0.0  # Seconds spent on steps that had not been done before.
    lost: dict[str, float] = Field(default_factory=dict)  # Seconds by cause: down time, and steps that were done twice.
    goodput: str = ""  # usefulSeconds / (usefulSeconds + the sum of `lost`).
    conditions: list[Condition] = Field(default_factory=list)  # Those of other programs too.
