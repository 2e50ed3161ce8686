"""Slots, incarnations, and the pods to create. Those to delete are in `stale_pods`."""

from __future__ import annotations

from trainmaster_operator.api.compact_lists import pack_counts
from trainmaster_operator.api.job_spec import Framework
from trainmaster_operator.planning.facts.change import Change, changed, counted, normal
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, WorkersStatus
from trainmaster_operator.planning.facts.observation import JobSpec, Observation, PodToCreate
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.facts.view import WORKER, View
from trainmaster_operator.planning.lifecycle import revision
from trainmaster_operator.planning.placement import gang_release
from trainmaster_operator.planning.placement.stale_pods import is_past_waiting
from trainmaster_operator.planning.rounds import allowed_sizes


class DamagedStatus(Exception):
    """The status cannot be one that this operator has written."""


def initialise(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Change | None:
    """Return the first status of a job, or None if it has one. A job is never begun twice. Raise DamagedStatus if a
    started job's status lacks the incarnations of its pods."""
    if status.incarnations:
        return None
    if status.observedGeneration > 0:
        raise DamagedStatus(
            "status.internal.incarnations is missing although the job was started, so its pods are not known; "
            "restore the status, or delete the job and submit it again"
        )
    size, spares = allowed_sizes.wished(spec), spec.workers.spares
    ranks = spec.workers.ranksPerPod
    words = f"{counted(size, 'pod')} with {counted(ranks, 'rank')}{' each' if size > 1 else ''}"
    words += f", and {counted(spares, 'spare')}" if spares else ""
    if spec.checkpoint.folder is None:
        what = "nothing is saved, and a restart begins at step 0"
        if spec.framework is not Framework.TRAINMASTER:
            what = "nothing is saved but what the script saves by itself"
        words += f"; without spec.checkpoint.volume or directory {what}"
    return changed(
        status,
        normal("Accepted", words),
        phase=JobPhase.PENDING,
        startTime=rfc3339(now),
        **revision.begun(spec, status, observed),
        incarnations=pack_counts([0] * (size + spares)),
        workers=WorkersStatus(
            desired=size,
            replicas=size,
            selector=f"trainmaster.dev/job={observed.name},trainmaster.dev/role={WORKER}",
        ),
    )


def apply_edits(view: View) -> Change | None:
    """Begin the run again with edits that were made before a round of it, so that a wrong image is corrected at
    once. All pods are replaced, also those that this operator has not seen."""
    observed = view.observed
    if not revision.may_change(view):
        return None
    if not observed.waiting and not observed.revision_lost:
        unnamed = view.status.revision == "" and observed.revision != ""
        return changed(view.status, **revision.begun(view.spec, view.status, observed)) if unnamed else None
    what = revision.named(observed.waiting) if observed.waiting else "the spec of the run"
    return changed(
        view.status,
        normal("RevisionChanged", f"{what} changed before the first round, so all pods are created again"),
        incarnations=all_raised(view),
        **revision.begun(view.spec, view.status, observed),
    )


def raised(view: View, slots: tuple[int, ...]) -> str:
    """Return the packed incarnations with those of `slots` increased by one."""
    counts = list(view.incarnations)
    for slot in slots:
        counts[slot] += 1
    return pack_counts(counts)


def all_raised(view: View, slots: int | None = None) -> str:
    """Return packed incarnations for a new pod in every slot: one number that is higher than every earlier one."""
    return pack_counts([next_incarnation(view)] * (view.slots if slots is None else slots))


def next_incarnation(view: View) -> int:
    """Return a number that is higher than the incarnation of every present or former slot."""
    return max(*view.incarnations, view.status.workers.nextIncarnation - 1) + 1


def missing(view: View) -> tuple[PodToCreate, ...]:
    """Return the pods to create. No pod is created while another pod of its slot exists, unless storage fences that one
    off and its end takes long.

    While a round is open, no pod is created for a member: the round opened with all pods, so a missing one has either
    done its work or is a failure that ends the round first. A second pod of one incarnation must not join the ranks of
    the first.
    """
    if gang_release.retry_in_s(view) > 0 or _refused_for_s(view) > 0 or view.observed.revision_lost:
        return ()
    return _absent(view)


def missing_due_s(view: View) -> float | None:
    """Return the seconds until pods that cannot be created now are tried again; None if there are none."""
    waits = [wait for wait in (gang_release.retry_in_s(view), _refused_for_s(view)) if wait > 0]
    return max(waits) if waits and _absent(view) else None


def _absent(view: View) -> tuple[PodToCreate, ...]:
    taken = {pod.slot for pod in view.others if not is_past_waiting(view, pod)}
    return tuple(
        PodToCreate(WORKER, slot, view.incarnations[slot])
        for slot in (view.parked if view.round_is_open else range(view.slots))
        if view.pods[slot] is None and slot not in taken
    )


def _refused_for_s(view: View) -> float:
    refusal = view.observed.refusal
    return refusal.again_in_s if refusal is not None else 0.0
