"""The state of the job as conditions, for `kubectl wait` and for people."""

from __future__ import annotations

from trainmaster_operator.planning.facts.change import condition
from trainmaster_operator.planning.facts.foreign_conditions import OWN
from trainmaster_operator.planning.facts.job_state import Condition, JobPhase, JobState
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.failure import hold
from trainmaster_operator.planning.placement.gang_release import SCHEDULED

TRUE_IN = {
    "Running": (JobPhase.RUNNING, JobPhase.RESIZING, JobPhase.SUSPENDING),
    "Recovering": (JobPhase.RECOVERING,),
    "Suspended": (JobPhase.SUSPENDED,),
    "Held": (JobPhase.HELD,),
    "Complete": (JobPhase.SUCCEEDED,),
    "Failed": (JobPhase.FAILED,),
}


STARTING = "PodsStarting"  # The reason of condition Scheduled until it is known whether all pods find a place.
UNTIL_RANKS_START = "pods are starting; once all of them run and their agents are ready, the ranks start"
"""The message with that reason. It stays true until the first round opens, so the start of a job needs no further
write."""


def conditions(status: JobState, generation: int, now: float) -> list[Condition]:
    """Return the conditions for the present phase, with `generation` as the observedGeneration of all that the
    operator sets. Conditions of other modules otherwise stay as they are, and those of other programs in all. Running
    and Scheduled always exist; the others exist from the first time that they are true."""
    kept = {c.type: c for c in status.conditions}
    for kind, phases in TRUE_IN.items():
        holds = status.phase in phases
        if kind not in kept and not holds and kind != "Running":
            continue
        reason, message = _words(status) if holds else (status.phase.value, "")
        kept[kind] = condition(status, kind, holds, reason, message, now)
    scheduled = kept.get(SCHEDULED)
    if status.phase is JobPhase.SUSPENDED and scheduled is not None and scheduled.reason != "Suspended":
        kept[SCHEDULED] = Condition(type=SCHEDULED, status="False", reason="Suspended", lastTransitionTime=rfc3339(now))
    if status.phase is JobPhase.PENDING and (scheduled is None or scheduled.reason == "Suspended"):
        # The status is Unknown: the time of an obstacle counts only from when it is found.
        unknown = not_known_to_be_scheduled(generation, now)
        kept = {SCHEDULED: unknown, **{kind: one for kind, one in kept.items() if kind != SCHEDULED}}
    return [
        one.model_copy(update={"observedGeneration": generation})
        if one.observedGeneration != generation and one.type in OWN
        else one
        for one in kept.values()
    ]


def not_known_to_be_scheduled(generation: int, now: float) -> Condition:
    """Return the condition Scheduled for pods that start while no obstacle is known."""
    return Condition(
        type=SCHEDULED,
        status="Unknown",
        reason=STARTING,
        message=UNTIL_RANKS_START,
        lastTransitionTime=rfc3339(now),
        observedGeneration=generation,
    )


def _words(status: JobState) -> tuple[str, str]:
    failure = status.lastFailure
    if status.phase in (JobPhase.RECOVERING, JobPhase.HELD, JobPhase.FAILED) and failure is not None:
        where = f"rank {failure.rank}: " if failure.rank is not None else ""
        way_out = f"; {hold.WAY_OUT}" if status.phase is JobPhase.HELD else ""
        return failure.cause, f"{where}{failure.message}"[:512] + way_out
    if status.phase in (JobPhase.SUSPENDING, JobPhase.RESIZING):
        return status.phase.value, ""
    return status.phase.value, ""
