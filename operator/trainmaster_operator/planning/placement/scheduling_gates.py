"""Pods that a scheduling gate holds back, as Kueue's gate does until there is quota for them.

While a gate is there, the job does not lack places: no deadline runs, and no pod is deleted to free its place. Waiting
times after that count from the removal of the last gate.
"""

from __future__ import annotations

from trainmaster_operator.planning.facts.job_state import GateStatus, JobPhase, JobState
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.planning.facts.timestamps import rfc3339, since
from trainmaster_operator.planning.facts.view import View

GATED = "SchedulingGated"
"""The reason that Kubernetes gives for such a pod; the condition Scheduled uses it too."""


def is_gated(pod: PodRecord | None) -> bool:
    """Return whether a scheduling gate holds the pod back."""
    return pod is not None and pod.node == "" and pod.reason == GATED and not pod.deleting


def hold(view: View) -> bool:
    """Return whether a gate holds back a pod for which the next round waits."""
    return not view.round_is_open and any(is_gated(pod) for pod in view.pods)


def update(view: View, status: JobState) -> JobState:
    """Return `status` with the time for which gates have held back pods since the run began."""
    if status.phase.finished or status.phase in (JobPhase.SUSPENDED, JobPhase.HELD):
        return status
    known, now_held = status.gates, hold(view)
    if now_held == (known is not None and known.since != ""):
        return status
    if now_held:
        gates = (known or GateStatus()).model_copy(update={"since": rfc3339(view.now)})
    else:
        assert known is not None
        gates = GateStatus(until=rfc3339(view.now), seconds=round(held_s(status, view.now), 3))
    return status.model_copy(update={"gates": gates})


def held_s(status: JobState, now: float) -> float:
    """Return the seconds for which gates have held back pods since the run began, up to now."""
    return 0.0 if status.gates is None else status.gates.seconds + since(status.gates.since, now)


def since_lifted_s(status: JobState, now: float) -> float:
    """Return the seconds since the last gate of the run was removed; 0 while there is one, infinity if there was
    none."""
    gates = status.gates
    if gates is None:
        return float("inf")
    return 0.0 if gates.since else since(gates.until, now)
