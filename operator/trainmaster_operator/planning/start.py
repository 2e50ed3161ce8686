"""Slots, incarnations, and the pods that ought to be there."""

from __future__ import annotations

from trainmaster_operator.api.meta import pack_counts
from trainmaster_operator.api.status import JobPhase, JobStatus, WorkersStatus
from trainmaster_operator.planning.change import Change, changed, normal
from trainmaster_operator.planning.observation import JobSpec, Observation, PodToCreate, PodToDelete
from trainmaster_operator.planning.times import rfc3339
from trainmaster_operator.planning.view import ENDED, WORKER, View


def initialise(spec: JobSpec, status: JobStatus, observed: Observation, now: float) -> Change | None:
    """The first status of a job."""
    if status.incarnations:
        return None
    return changed(
        status,
        normal("Accepted", f"{spec.workers.replicas} pods with {spec.workers.ranksPerPod} ranks each"),
        phase=JobPhase.PENDING,
        startTime=rfc3339(now),
        incarnations=pack_counts([0] * spec.workers.replicas),
        workers=WorkersStatus(
            replicas=spec.workers.replicas,
            selector=f"trainmaster.dev/job={observed.name},trainmaster.dev/role={WORKER}",
        ),
    )


def raised(view: View, slots: tuple[int, ...]) -> str:
    """The incarnations with those of `slots` replaced by the next."""
    counts = list(view.incarnations)
    for slot in slots:
        counts[slot] += 1
    return pack_counts(counts)


def all_raised(view: View, replicas: int | None = None) -> str:
    """Incarnations for a fresh pod in every slot: one number, above every one that was."""
    size = view.slots if replicas is None else replicas
    return pack_counts([max(view.incarnations) + 1] * size)


def stale(view: View) -> tuple[PodToDelete, ...]:
    """Pods whose incarnation is over. Their round is over too (the same write raised it), so nothing is waited for.

    A script's own files have no fence. There only the end of its processes, confirmed by the kubelet, lets the next
    pod start, hence a grace of one second instead of a deletion of the mere object.
    """
    grace = 1.0 if view.scripted else 0.0
    deletes = []
    for pod in view.others:
        if pod.slot < view.slots and pod.incarnation > view.incarnations[pod.slot]:
            continue  # from a status newer than this one: the next pass will see it
        if pod.deleting and view.scripted and pod.phase not in ENDED:
            continue
        ended = pod.phase in ENDED
        deletes.append(PodToDelete(pod.name, pod.uid, "a newer incarnation takes its place", 0.0 if ended else grace))
    return tuple(deletes)


def missing(view: View) -> tuple[PodToCreate, ...]:
    """Pods to create: never while another pod of the slot is still there, whatever its state.

    None while a round is open: it opened with all of them there, so one that is missing has done its part, or is a
    failure that ends the round first. A second pod of one incarnation must not join the ranks of the first.
    """
    if view.round_is_open:
        return ()
    taken = {pod.slot for pod in view.others}
    return tuple(
        PodToCreate(WORKER, slot, view.incarnations[slot])
        for slot, pod in enumerate(view.pods)
        if pod is None and slot not in taken
    )
