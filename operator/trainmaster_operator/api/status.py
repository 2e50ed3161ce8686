"""The status of `DistributedTrainingJob` as the API shows it. Only the operator writes it.

These models define the schema and the output of `kubectl explain`. No code decides from them: the planner works on the
flat record of `planning.facts.job_state`, and `planning.status_mapping` translates between the two. A field without a
value is absent, never empty.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainmaster_operator.api.internal_status import OperatorMemory
from trainmaster_operator.api.status_terms import Group, JobPhase, Rung, Time


class Condition(Group):
    """A condition of the job, with the fields of metav1.Condition."""

    type: str = Field(
        description="What the condition is about, such as Scheduled, Running or NeedsMigration. Each type exists at "
        "most once.",
        max_length=316,
    )
    status: Literal["True", "False", "Unknown"] = Field(
        description="Whether the condition holds: True, False or Unknown."
    )
    observedGeneration: int | None = Field(
        None, description="The metadata.generation of the job for which the operator found the condition."
    )
    lastTransitionTime: Time = Field(description="The time at which the status of the condition last changed.")
    reason: str = Field(
        description="Why the condition has this status, as one word that programs can compare. It is never empty.",
        min_length=1,
        max_length=1024,
    )
    message: str | None = Field(
        None, description="Why the condition has this status, as sentences for people.", max_length=32768
    )


class WorkersStatus(Group):
    """How many pods the job has, and how many it is to have."""

    desired: int | None = Field(None, description="Number of pods with ranks that the job is to have by its spec.")
    current: int | None = Field(
        None,
        description="Number of pods whose ranks train together now, or did so until the last failure. Spares are not "
        "counted. The scale subresource shows this number.",
    )
    ready: int | None = Field(
        None,
        description="Number of pods with ranks whose agent is connected to the operator. Spares are not counted. It "
        "is 0 when the job has ended.",
    )
    spares: int | None = Field(
        None, description="Number of pods without ranks that are connected and can take the place of a lost pod."
    )
    summary: str | None = Field(
        None,
        description="The numbers ready and desired as one text, such as 3/4, for the column WORKERS of kubectl get.",
    )
    selector: str | None = Field(
        None, description="The label selector of the pods of the job, for the scale subresource.", max_length=512
    )
    legalSizes: list[int] | None = Field(
        None,
        description="The smallest values that workers.replicas can have with the parallelism and the batch of the "
        "job, at most 64 of them.",
        max_length=64,
    )


class ProgressStatus(Group):
    """The progress and the speed of the training."""

    step: int | None = Field(
        None,
        description="The last step that all ranks have completed. It becomes lower when the job continues from an "
        "earlier checkpoint.",
    )
    totalSteps: int | None = Field(None, description="Number of steps after which the job is done, if that is known.")
    highestStep: int | None = Field(None, description="The highest step that the job has ever completed.")
    loss: str | None = Field(
        None, description="The loss of the last step as a text, because it can be nan. Scripts need not report it."
    )
    stepsPerSecond: float | None = Field(None, description="Number of steps per second, as a smoothed value.")
    tokensPerSecond: float | None = Field(
        None, description="Number of tokens or samples per second of all ranks together, as a smoothed value."
    )
    etaSeconds: float | None = Field(
        None, description="Number of seconds until the last step is expected to be done, counted from updatedAt."
    )
    eta: str | None = Field(
        None,
        description="The time until the last step is expected to be done, such as 2h5m, for the column ETA of kubectl "
        "get.",
    )
    updatedAt: Time | None = Field(None, description="The time at which the operator wrote this group.")


class SavedPoint(Group):
    """A saved state."""

    step: int | None = Field(None, description="The step after which this state was saved.")
    round: int | None = Field(None, description="The round whose ranks saved this state.")
    tier: str | None = Field(
        None, description="Where the state lies: storage is the storage of the job, ram is the memory of its pods."
    )
    time: Time | None = Field(None, description="The time at which the operator learned of this state.")


class FailedSave(Group):
    """A state that could not be saved."""

    step: int | None = Field(None, description="The step after which the state could not be saved.")
    round: int | None = Field(None, description="The round whose ranks could not save their state.")
    message: str | None = Field(
        None, description="Why the state could not be saved, in the words of the storage.", max_length=1024
    )
    time: Time | None = Field(None, description="The time at which the operator learned of the failure.")


class CheckpointStatus(Group):
    """Which states are saved, and where."""

    durable: SavedPoint | None = Field(
        None, description="The newest checkpoint on storage. It survives the loss of all pods."
    )
    memory: SavedPoint | None = Field(
        None,
        description="The newest state that lies in the memory of all pods. It is used after a failure of ranks, and "
        "it is lost with the pods.",
    )
    failed: FailedSave | None = Field(
        None, description="The newest save that storage did not take. It is kept after a later save has succeeded."
    )
    scriptStep: int | None = Field(
        None,
        description="The step after which a user's script last called torch.save. It does not show which files the "
        "script wrote.",
    )


class RestartCounts(Group):
    """Number of restarts by what was restarted."""

    total: int | None = Field(
        None,
        description="Number of restarts after failures. Resumes, resizes and evictions are counted in free instead.",
    )
    inPlace: int | None = Field(
        None, description="Number of restarts after failures in which ranks were started again in their pods."
    )
    pod: int | None = Field(
        None, description="Number of restarts after failures in which at least one pod was replaced."
    )
    full: int | None = Field(None, description="Number of restarts after failures in which all pods were replaced.")
    shrink: int | None = Field(
        None, description="Number of restarts after failures in which the job continued with fewer pods."
    )
    free: int | None = Field(
        None,
        description="Number of restarts that were not caused by a failure of the job and that use no budget: "
        "evictions, resumes, resizes and lost stores.",
    )


class FailureRecord(Group):
    """One failure of the job."""

    cause: str | None = Field(
        None, description="The cause of the failure, such as Crash, OutOfMemory, Hang, NodeLost or ConfigError."
    )
    rank: int | None = Field(None, description="The rank that failed first. It is absent if no rank failed by itself.")
    pod: str | None = Field(None, description="The name of the pod that failed or in which the rank failed.")
    node: str | None = Field(None, description="The name of the node on which that pod ran.")
    exitCode: int | None = Field(
        None,
        description="The exit code of the rank or of the container. It is 128 + n after a signal n, for example 137 "
        "after SIGKILL.",
    )
    signal: str | None = Field(None, description="The name of the signal that ended the rank, for example SIGKILL.")
    message: str | None = Field(
        None, description="What went wrong, in the words of the rank, the node or the cluster.", max_length=4096
    )
    traceback: str | None = Field(
        None, description="The end of the Python traceback of the rank that failed first.", max_length=8192
    )
    step: int | None = Field(
        None,
        description="The last step that the failed rank had completed. Other ranks may have completed one step more. "
        "If no rank failed, it is the highest step that the job had completed.",
    )
    round: int | None = Field(None, description="The number of the round that the failure ended.")
    time: Time | None = Field(None, description="The time at which the failure happened.")
    rule: str | None = Field(
        None,
        description="The rule of spec.recovery.rules that decided what was done. It is absent if the defaults decided.",
    )


class RecoveryRecord(Group):
    """One recovery, with how long each of its phases took."""

    round: int | None = Field(None, description="The number of the round that the recovery opened.")
    cause: str | None = Field(None, description="The cause of the restart, as in lastFailure.")
    rung: Rung | None = Field(
        None,
        description="What was restarted. inPlace: the ranks in their pods. pod: some pods. full: all pods. shrink: all "
        "ranks, with fewer pods. free: a restart that is no failure of the job.",
    )
    rank: int | None = Field(None, description="The rank that failed first. It is absent if no rank failed by itself.")
    pod: str | None = Field(None, description="The name of the pod that failed or in which the rank failed.")
    step: int | None = Field(
        None, description="The highest step that any rank of the job had completed before the restart."
    )
    resumedStep: int | None = Field(
        None, description="The step from which the ranks continued. It is absent if a script does not report it."
    )
    tier: str | None = Field(
        None,
        description="Where the ranks found that state: ram is the memory of their own pod, peer is the memory of "
        "another pod, storage is the storage of the job.",
    )
    lostSteps: int | None = Field(None, description="Number of steps that had to be done again.")
    startedAt: Time | None = Field(None, description="The time of the failure or of the request to restart.")
    totalMilliseconds: float | None = Field(
        None,
        description="Number of milliseconds from startedAt to the first step of the new round. It is absent while the "
        "recovery is going on.",
    )
    overtaken: bool | None = Field(
        None, description="Whether the job ended or stopped before the new round completed a step."
    )
    phaseMilliseconds: Annotated[dict[str, float], Field(max_length=16)] | None = Field(
        None,
        description="Number of milliseconds in each phase of the recovery: detect, decide, drain, schedule, start, "
        "fork, imports, rendezvous, build, load, firstStep. Where pods wait for each other, the pod that the others "
        "waited for counts, so their sum is never more than totalMilliseconds.",
    )


class GoodputStatus(Group):
    """Which part of the time went into useful steps."""

    ratio: str | None = Field(
        None,
        description="The share of the time since the first step that went into useful steps, such as 0.97. The time in "
        "which the job is suspended is not counted.",
    )
    usefulSeconds: float | None = Field(
        None, description="Number of seconds that went into steps which had not been done before."
    )
    lostSeconds: Annotated[dict[str, float], Field(max_length=64)] | None = Field(
        None,
        description="Number of seconds that were lost, by cause: the time of recoveries and of steps that were done "
        "twice. Checkpoint and Evaluation are the times for which training stopped. Resume is the time from the start "
        "of a resumed job to its next step.",
    )
    since: Time | None = Field(None, description="The time of the first step of the job, from which time is counted.")


class RoundStatus(Group):
    """The common start of all ranks that is going on."""

    number: int | None = Field(
        None,
        description="The number of the round. A round is one common start of all ranks; each restart has a new one.",
    )
    minor: int | None = Field(
        None, description="Number of rounds with this number that agents opened while no operator answered."
    )
    members: str | None = Field(
        None,
        description="The slots of the pods in the order of their ranks, as ranges such as 0-3. While a round is "
        "prepared, it shows those of the previous one.",
    )
    store: str | None = Field(
        None,
        description="The address of the store at which the ranks meet, as host:port. It is absent while a round is "
        "prepared.",
    )
    openedAt: Time | None = Field(
        None, description="The time since which the round is open or, without a store, since which it is prepared."
    )


# This class has no docstring, because that would become the description of status in the CRD.
class JobStatus(Group):
    observedGeneration: int | None = Field(
        None, description="The metadata.generation of the job for which the operator last decided."
    )
    phase: JobPhase | None = Field(
        None,
        description="The state of the job in one word. Pending: pods are missing. Starting: all pods are there and no "
        "rank has completed a step. Running: ranks complete steps. Recovering: ranks restart after a failure. "
        "Resizing: ranks save and restart with another number of pods. Suspending: ranks save before they stop. "
        "Suspended: the job has no pods. Held: a rule stopped the job and kept its pods. Succeeded and Failed: the job "
        "is finished.",
    )
    reason: str | None = Field(
        None,
        description="Why the job is in this phase, as one word: the reason of the condition that explains it. The wide "
        "output of kubectl get shows it in the column REASON.",
    )
    revision: str | None = Field(
        None, description="The name of the ControllerRevision from which all pods of this run are created."
    )
    startTime: Time | None = Field(None, description="The time at which the job was started or last resumed.")
    completionTime: Time | None = Field(None, description="The time at which the job succeeded or failed.")
    conditions: list[Condition] | None = Field(
        None, description="The state of the job as conditions, for kubectl wait and other programs.", max_length=32
    )
    workers: WorkersStatus | None = Field(None, description="How many pods the job has.")
    progress: ProgressStatus | None = Field(None, description="The progress and the speed of the training.")
    checkpoint: CheckpointStatus | None = Field(None, description="Which states of the job are saved, and where.")
    restarts: RestartCounts | None = Field(None, description="How often ranks or pods of the job were restarted.")
    lastFailure: FailureRecord | None = Field(
        None, description="The last failure of the job. It is kept after the job has recovered."
    )
    recoveries: list[RecoveryRecord] | None = Field(
        None, description="The last recoveries with the time of each phase, the newest last.", max_length=16
    )
    goodput: GoodputStatus | None = Field(None, description="Which part of the time went into useful steps.")
    round: RoundStatus | None = Field(None, description="The common start of all ranks that is going on.")
    internal: OperatorMemory | None = Field(
        None,
        description="What the operator remembers for itself. Its fields may change in any version, so programs should "
        "not read them.",
    )
