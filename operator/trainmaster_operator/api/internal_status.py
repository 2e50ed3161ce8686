"""The models of `status.internal`, in which the operator stores what it must remember for itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainmaster_operator.api.status_terms import Group, Rung, Time


class StopMemory(Group):
    """The step at which all ranks are to stop."""

    step: int | None = Field(None, description="The step after which all ranks save and stop.")
    bound: bool | None = Field(
        None, description="Whether the ranks have received this step. After that the stop cannot be cancelled."
    )


class RoundMemory(Group):
    """What the operator remembers about the present round."""

    pods: str | None = Field(None, description="A checksum of the uids of the pods that are in the round.")
    peers: int | None = Field(
        None,
        description="The distance between a pod and the pod that holds a copy of its memory, in the order of slots.",
    )
    lastSave: int | None = Field(
        None, description="The step of the last torch.save of a script when the previous round ended."
    )
    savedFrom: int | None = Field(
        None, description="The step from which the processes of that script counted their steps."
    )
    resume: str | None = Field(None, description="What the ranks of the round continue from: Auto, Never or a path.")


class Charge(Group):
    """A restart that counts against the budget."""

    time: Time | None = Field(None, description="The time of the restart.")
    rung: Rung | None = Field(None, description="Which part of spec.recovery.budget the restart used.")
    cause: str | None = Field(None, description="The cause of the restart.")
    step: int | None = Field(
        None, description="The highest step of the job at that time. It is -1 when the job has progressed since."
    )
    count: int | None = Field(None, description="Number of restarts that this entry stands for. Default: 1.")


class GangBackoff(Group):
    """Pods that were deleted because other pods of the job found no place."""

    times: int | None = Field(None, description="Number of times that the pods were given back in succession.")
    retryAt: Time | None = Field(None, description="The time from which pods are created again.")


class GateMemory(Group):
    """For how long scheduling gates have held back pods."""

    since: Time | None = Field(None, description="The time since which a scheduling gate has held back pods.")
    until: Time | None = Field(None, description="The time at which the last scheduling gate was removed.")
    seconds: float | None = Field(
        None,
        description="Number of seconds for which gates have held back pods, not counting the time after gates.since.",
    )


class LearnedPause(Group):
    """How long ranks are silent in one phase."""

    count: int | None = Field(None, description="Number of pauses that were seen.")
    typical: float | None = Field(None, description="The usual length of a pause in seconds.")
    longest: float | None = Field(
        None, description="The greatest length of a pause in seconds; it becomes lower with time."
    )
    total: float | None = Field(None, description="Number of seconds that the slowest rank has paused in this round.")


class HangSuspicion(Group):
    """Ranks that may hang."""

    round: int | None = Field(None, description="The number of the round whose ranks may hang.")
    rank: int | None = Field(None, description="The rank that has been silent for the longest time.")
    slot: int | None = Field(None, description="The slot of the pod of that rank.")
    pod: str | None = Field(None, description="The name of the pod of that rank.")
    phase: str | None = Field(None, description="What the rank was doing, such as step or save.")
    step: int | None = Field(None, description="The step that the rank had completed.")
    limitSeconds: float | None = Field(None, description="Number of seconds of silence that are allowed in that phase.")
    since: Time | None = Field(None, description="The time at which the limit was exceeded.")
    confirmed: bool | None = Field(
        None, description="Whether the ranks hang and spec.recovery.hang.mode says to leave them as they are."
    )
    message: str | None = Field(None, description="What the stacks of the ranks show.", max_length=1024)
    traceback: str | None = Field(None, description="The stack of the rank.", max_length=4096)


class StragglerMemory(Group):
    """A rank that slows down the others."""

    round: int | None = Field(None, description="The number of the round in which the rank is slow.")
    rank: int | None = Field(None, description="The rank for which the others wait.")
    pod: str | None = Field(None, description="The name of the pod of that rank.")
    node: str | None = Field(None, description="The name of the node on which that pod runs.")
    computeSeconds: float | None = Field(
        None, description="Number of seconds of a step in which the rank does not wait for others."
    )
    usualSeconds: float | None = Field(None, description="The median of the same number over the other ranks.")
    since: Time | None = Field(None, description="The time since which the rank is slow.")
    told: bool | None = Field(None, description="Whether an event about the rank was written.")


class JobTotals(Group):
    """What has happened to the job since it was created."""

    failures: Annotated[dict[str, int], Field(max_length=32)] | None = Field(
        None, description="Number of failures since the job was created, by cause. Free restarts are counted too."
    )
    recoveries: int | None = Field(None, description="Number of failures after which the job completed a step again.")
    lostSteps: int | None = Field(None, description="Number of steps that had to be done again after failures.")
    phases: Annotated[dict[str, float], Field(max_length=16)] | None = Field(
        None, description="Number of seconds that recoveries spent in each phase."
    )
    setAside: Annotated[dict[str, float], Field(max_length=4)] | None = Field(
        None, description="Number of lost seconds that metrics report under a category of their own."
    )
    told: Annotated[dict[str, float], Field(max_length=16)] | None = Field(
        None, description="Number of lost seconds that metrics have reported already, by category."
    )


class OperatorMemory(Group):
    """What the operator must remember about a job after a restart of the operator."""

    leaderEpoch: int | None = Field(
        None, description="The number of the leadership of the operator that wrote the status."
    )
    incarnations: str | None = Field(
        None, description="The number of the pod in each slot, with repetitions such as 0*4 for four zeros."
    )
    nextIncarnation: int | None = Field(None, description="The lowest number that a pod of an added slot may have.")
    revisions: list[str] | None = Field(
        None, description="The names of the ControllerRevisions of the last runs, the newest first.", max_length=3
    )
    restartObeyed: int | None = Field(None, description="The highest value of spec.restart for which a run has begun.")
    avoidNodes: list[str] | None = Field(
        None, description="The names of the nodes on which new pods are not placed if that is possible.", max_length=32
    )
    avoidedInVain: bool | None = Field(
        None,
        description="If true, pods that avoided avoidNodes could not be scheduled, so pods may use any node until the "
        "ranks have started again.",
    )
    stop: StopMemory | None = Field(None, description="The common step at which the ranks are to save and stop.")
    round: RoundMemory | None = Field(
        None, description="What the operator knows about the round in addition to status.round."
    )
    lastStores: str | None = Field(
        None, description="The addresses of the stores of the last rounds, the newest first. No round uses them again."
    )
    charges: list[Charge] | None = Field(
        None, description="The restarts that count against spec.recovery.budget.", max_length=64
    )
    gangBackoff: GangBackoff | None = Field(
        None, description="When pods are created again after they were given back because others found no place."
    )
    gates: GateMemory | None = Field(
        None,
        description="For how long scheduling gates have held back pods since the run began. This time counts against "
        "no deadline.",
    )
    totals: JobTotals | None = Field(
        None, description="What has happened to the job since it was created, from which its metrics are made."
    )
    learnedPauses: dict[str, LearnedPause] | None = Field(
        None, description="How long ranks are silent in each phase, from which the limits of silence are derived."
    )
    learnedPausesRound: int | None = Field(
        None, description="The number of the round whose ranks last reported pauses."
    )
    hangSuspicion: HangSuspicion | None = Field(
        None, description="Ranks that may hang, while the operator looks into it."
    )
    straggler: StragglerMemory | None = Field(None, description="The rank that slows down the others of its round.")
    accountedAt: Time | None = Field(None, description="The time up to which goodput is counted.")
    resizedAt: Time | None = Field(
        None,
        description="The time at which the number of pods, or the number that the spec asks for, last changed.",
    )
    shrunkAt: Time | None = Field(
        None, description="The time since which the job has fewer pods than desired because pods are missing."
    )
    podReplacedAt: Time | None = Field(None, description="The time at which a pod without ranks was last replaced.")
    podReplacements: int | None = Field(None, description="Number of such replacements in succession.")
    microDivisor: int | None = Field(
        None, description="The divisor of the micro-batch after a device ran out of memory. Default: 1."
    )
    skippedData: list[Annotated[list[int], Field(max_length=2)]] | None = Field(
        None, description="The ranges of samples that are skipped, each as [first, end).", max_length=32
    )
