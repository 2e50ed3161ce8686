"""The state of one job: all that a restarted operator needs, besides what agents report, in a few KB.

The planner works on this flat record and never changes one in place. `status_mapping` writes it into the groups of the
API's status and reads it back, so a change of the API reaches that module and not the policies. Times are RFC 3339 in
UTC with milliseconds, and "" where there is none; losses are strings, because NaN is not JSON.
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
    model_config = ConfigDict(extra="ignore", populate_by_name=True, use_enum_values=False)


class Condition(Loose):
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str  # never empty
    message: str = Field("", max_length=1024)
    lastTransitionTime: str = ""
    observedGeneration: int = 0  # of the spec that it was found for


class WorkersStatus(Loose):
    """`replicas`: pods whose ranks make up the world of the round that is open, or of the one before. No spares."""

    desired: int = 0  # what replicas is to be by the spec
    replicas: int = 0
    ready: int = 0  # of those, with an agent
    spares: int = 0  # with an agent, beside them
    selector: str = ""
    legalSizes: list[int] = Field(default_factory=list, max_length=64)  # the first that workers.replicas may be
    resizedAt: str = ""  # when `replicas`, or what is wished for, last changed
    shrunkAt: str = ""  # since when it is smaller than wished because pods were missing; "" when it isn't
    nextIncarnation: int = 0  # of a slot that is added: above those of all slots that were removed
    replacedAt: str = ""  # when a pod without a rank was last replaced...
    replacements: int = 0  # ...and how often in a row


class ReleasedStatus(Loose):
    """Pods that were given back because the others found no place. None once all had one."""

    times: int
    retryAt: str = ""


class GateStatus(Loose):
    """Scheduling gates that held back pods since the run began. None if there was none."""

    since: str = ""  # "": there is none now
    until: str = ""  # when the last one was lifted
    seconds: float = 0.0  # for so long there was one, without the time since `since`


class ProgressStatus(Loose):
    step: int = 0
    totalSteps: int = 0
    loss: str = ""
    highestStep: int = 0  # ever reached: `step` falls back when a round resumes from an earlier checkpoint
    lastSave: int = 0  # the step after which a script last called torch.save; 0: after none
    memoryStep: int = 0  # the newest of this round that lies in the memory of all pods; 0: none
    stepsPerSecond: float = 0.0  # smoothed
    tokensPerSecond: float = 0.0
    etaSeconds: float | None = None
    updatedAt: str = ""


class CheckpointStatus(Loose):
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
    inPlace: int = 0
    pod: int = 0
    full: int = 0
    shrink: int = 0
    free: int = 0

    @property
    def total(self) -> int:
        """Restarts after failures; those of `free` had other reasons."""
        return self.inPlace + self.pod + self.full + self.shrink


class Spent(Loose):
    """One restart that counts: enough to judge the window and the budget per cause."""

    time: str
    rung: Rung
    cause: str
    step: int = 0  # the job's highest step at that time: progress beyond it clears the cause; -1: cleared
    count: int = 1  # restarts in this entry: old ones are merged when there are many


class Failure(Loose):
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
    rule: str = ""  # of spec.recovery.rules that decided the answer; "": the defaults did


class Recovery(Loose):
    """One recovery and where its time went (seconds). Open until the first step of the new round."""

    round: int  # the round that it opened
    cause: str
    rung: Rung
    rank: int | None = None
    pod: str = ""
    step: int = 0  # the highest step before the failure
    resumedStep: int | None = None
    tier: str = ""  # where that step was found: ram, peer (another pod's memory), storage
    lostSteps: int | None = None
    startedAt: str = ""
    totalSeconds: float | None = None
    overtaken: bool = False  # the job ended or stopped before the new round came to a step
    clock: dict[str, float] = Field(default_factory=dict)  # detect, decide, drain, ... first_step


class Totals(Loose):
    """What has happened to the job since it was created, for metrics: `recoveries` keeps only the last few."""

    failures: dict[str, int] = Field(default_factory=dict, max_length=32)  # cause -> how many, free ones included
    recoveries: int = 0  # failures after which the job made a step again
    lostSteps: int = 0
    phases: dict[str, float] = Field(default_factory=dict, max_length=16)  # phase of the clock -> seconds
    setAside: dict[str, float] = Field(default_factory=dict, max_length=4)
    """Seconds of `lost` that are told as a category of their own and not by cause."""
    told: dict[str, float] = Field(default_factory=dict, max_length=16)
    """Seconds by category that metrics have told already: a counter must not fall."""


class Pause(Loose):
    """How long ranks say nothing in one phase, in seconds: what limits on silence are learned from."""

    count: int = 0
    typical: float = 0.0
    longest: float = 0.0  # slowly forgotten
    total: float = 0.0  # of the slowest rank in this round


class Suspicion(Loose):
    """Ranks that may be stuck, while that is being looked into. Of `round` alone: it means nothing in another."""

    round: int
    rank: int
    slot: int
    pod: str = ""
    phase: str = ""
    step: int = 0
    limitSeconds: float = 0.0
    since: str = ""
    confirmed: bool = False  # they are stuck, but `recovery.hang.mode` says to leave them
    message: str = Field("", max_length=1024)
    traceback: str = Field("", max_length=4096)


class Straggler(Loose):
    """The rank that the others of `round` wait for."""

    round: int
    rank: int
    pod: str = ""
    node: str = ""
    computeSeconds: float = 0.0  # of a step, without waiting for others
    usualSeconds: float = 0.0  # the median of the other ranks
    since: str = ""
    told: bool = False  # it has been slow for long enough to say so


class JobState(Loose):
    observedGeneration: int = 0
    phase: JobPhase = JobPhase.PENDING
    leaderEpoch: int = 0

    round: int = 0
    roundMap: str = ""  # slots in rank order, as ranges: of the round that is open, or of the last while one forms
    roundMinor: int = 0  # rounds up to this one that agents opened while no leader answered
    roundStore: str = ""  # host:port of the round's store; "" while the round forms
    roundPods: str = ""  # which pods they are: a checksum of their uids, in the map's order
    roundOpenedAt: str = ""  # while it forms: since when
    roundPeers: int = 0  # copies of a slot's memory go to the one so many places further in the map; 0: nowhere
    roundLastSave: int = 0  # progress.lastSave when the round before it ended...
    roundSavedFrom: int = 0  # ...and the step from which the processes of that round counted theirs
    roundResume: str = ""  # what its ranks resume from: Auto, Never or a path
    lastStore: str = ""  # of the last rounds that were open, newest first: never used again
    incarnations: str = ""  # of each slot, run-length: "0*4"
    revision: str = ""  # the ControllerRevision that all pods of this run are built from
    revisions: list[str] = Field(default_factory=list, max_length=3)  # of the last runs that differ, newest first
    restartObeyed: int = 0  # the highest spec.restart that a run has begun for
    avoidNodes: list[str] = Field(default_factory=list, max_length=32)  # pods that are made now keep away from them
    avoidedInVain: bool = False  # pods that kept away found no place: until a round opens, none does
    stopAt: int | None = None
    stopBound: bool = False
    microDivisor: int = 1  # by which the micro-batch was made smaller, after a device ran out of memory
    skipped: list[list[int]] = Field(default_factory=list, max_length=32)  # [first, end) of the data's order

    startTime: str = ""
    completionTime: str = ""
    workers: WorkersStatus = Field(default_factory=WorkersStatus)
    released: ReleasedStatus | None = None
    gates: GateStatus | None = None
    progress: ProgressStatus = Field(default_factory=ProgressStatus)
    checkpoint: CheckpointStatus | None = None
    failedSave: FailedSave | None = None  # kept when a newer one was saved
    restarts: Restarts = Field(default_factory=Restarts)
    spent: list[Spent] = Field(default_factory=list, max_length=64)
    lastFailure: Failure | None = None
    recoveries: list[Recovery] = Field(default_factory=list, max_length=16)
    totals: Totals | None = None  # None until the first failure
    pauses: dict[str, Pause] = Field(default_factory=dict)  # step, save, eval
    pausesRound: int = 0  # whose ranks told them last
    suspicion: Suspicion | None = None
    straggler: Straggler | None = None
    firstStepAt: str = ""  # of the job; goodput is counted from then on, but not while the job is suspended
    accountedAt: str = ""  # up to when the time is useful or lost
    usefulSeconds: float = 0.0  # spent on steps that had not been done before
    lost: dict[str, float] = Field(default_factory=dict)  # cause -> seconds: down time, and steps done twice
    goodput: str = ""  # usefulSeconds / (usefulSeconds + all that is in `lost`)
    conditions: list[Condition] = Field(default_factory=list, max_length=16)
