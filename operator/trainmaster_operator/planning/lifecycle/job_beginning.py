"""How a job begins: its first status with the event Accepted, and edits that are made before its first round."""

from __future__ import annotations

from trainmaster_operator.api.compact_lists import pack_counts
from trainmaster_operator.api.job_spec import Framework
from trainmaster_operator.planning.facts.change import Change, changed, normal
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, WorkersStatus
from trainmaster_operator.planning.facts.observation import JobSpec, Observation
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.facts.view import WORKER, View
from trainmaster_operator.planning.lifecycle import revision
from trainmaster_operator.planning.placement.pods_to_create import all_raised
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
