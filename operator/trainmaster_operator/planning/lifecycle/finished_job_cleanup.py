"""What becomes of a finished job: which of its pods are deleted, and when the job itself is."""

from __future__ import annotations

from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.observation import PodToDelete
from trainmaster_operator.planning.facts.timestamps import since
from trainmaster_operator.planning.facts.view import ENDED, View

FINISH_GRACE_S = 10.0
"""Seconds that agents have to end by themselves, so that their pods count as succeeded and keep their logs."""


def is_expired(view: View) -> bool:
    """Return whether a finished job is older than ttlSecondsAfterFinished."""
    left = expiry_s(view)
    return left is not None and left <= 0


def expiry_s(view: View) -> float | None:
    """Return the seconds until a finished job is deleted; None if it is kept."""
    ttl = view.spec.ttlSecondsAfterFinished
    return None if ttl is None else ttl - since(view.status.completionTime, view.now)


def leftovers(view: View) -> tuple[tuple[PodToDelete, ...], float | None]:
    """Return the pods of a finished job to delete now, and the seconds until more may be deleted; None if no more
    will be."""
    policy = view.spec.cleanPodPolicy
    waited = since(view.status.completionTime, view.now)
    deletes: list[PodToDelete] = [
        PodToDelete(p.name, p.uid, "stale", 0.0 if p.node_lost else None)
        for p in view.others
        # The ranks of a pod that lingers have ended, so it may stay where no pod is to be deleted.
        if not p.deleting and (p.phase not in ENDED or policy == "All" or (p.lingers and policy == "Running"))
    ]
    waiting = False
    for pod in view.pods:
        if pod is None or pod.deleting or policy == "None":
            continue
        if pod.phase in ENDED and not pod.lingers:
            if policy == "All":
                deletes.append(PodToDelete(pod.name, pod.uid, "the job is over", 0.0))
        elif waited >= FINISH_GRACE_S:
            deletes.append(PodToDelete(pod.name, pod.uid, "the job is over"))
        else:
            waiting = True
    return tuple(deletes), FINISH_GRACE_S - waited if waiting else None


def without_pods(status: JobState) -> JobState:
    """Return the status of a finished job with no pod counted as ready. The target numbers stay."""
    if not status.phase.finished or (status.workers.ready, status.workers.spares) == (0, 0):
        return status
    return status.model_copy(update={"workers": status.workers.model_copy(update={"ready": 0, "spares": 0})})
