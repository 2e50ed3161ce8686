"""Whether an operator manages a job now, and what that means for its status.

A status does not show its own age: without an operator it continues to say Running. The operator's Lease shows when one
last led. If a user may not read the Lease, the age of what was written is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from trainmaster.contract.wire import environment
from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.cluster.objects import seconds
from trainmaster_operator.cluster.port import LEASE, ApiError, Cluster, NotFound, Object
from trainmaster_operator.manifests.object_names import pod_name
from trainmaster_operator.planning.eta_column import duration
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.planning.facts.view import WORKER
from trainmaster_operator.planning.lifecycle.operator_absence import SHORTEST_S
from trainmaster_operator.runtime.leader.lease import LEASE_LABEL, LeaseSettings

STEPS = 10  # Number of steps that the job would have completed in the time after which their absence is reported.
STEPPING = (JobPhase.RUNNING, JobPhase.RESIZING, JobPhase.SUSPENDING)
WITHOUT_PODS = (JobPhase.SUSPENDED, JobPhase.HELD, JobPhase.SUCCEEDED, JobPhase.FAILED)
MISSING = "Missing"


@dataclass(frozen=True)
class Absence:
    """No operator is there. `sentence`: for how long, and what that means."""

    sentence: str


async def absence(
    cluster: Cluster, job: Object, status: JobState, pods: Sequence[Object], now: float
) -> Absence | None:
    """Return the absence for a job without an operator. Return None if an operator leads, the job has ended, or it
    is not known. `pods`: of the job. `now`: seconds since 1970."""
    if status.phase.finished:
        return None
    leases = await _leases(cluster, pods)
    if leases is None:
        return _of_what_was_written(job, status, now)
    return _of_leases(leases, now)


async def absence_of_any(cluster: Cluster, now: float) -> Absence | None:
    """Return the same before there is a job. Return None if an operator leads, or if nothing is known."""
    leases = await _leases(cluster, ())
    return _of_leases(leases, now) if leases is not None else None


def missing_pods(name: str, status: JobState, pods: Sequence[PodRecord], gone: Absence | None) -> Iterator[PodRecord]:
    """Yield a record for each pod that the job ought to have by its status and that is not there."""
    if status.phase in WITHOUT_PODS or (gone is None and status.phase is JobPhase.PENDING):
        return  # A job that is being started gets its pods one after another.
    there = {pod.name for pod in pods}
    why = "it is not created again while no operator leads" if gone else "it is created again"
    for slot, incarnation in enumerate(unpack_counts(status.incarnations)):
        expected = pod_name(name, WORKER, slot, incarnation)
        if expected not in there:
            yield PodRecord(expected, "", WORKER, slot, incarnation, MISSING, message=why)


def _of_leases(leases: Sequence[Object], now: float) -> Absence | None:
    """Return the absence according to the Leases. If several operators each serve their own namespace, one that
    leads is enough, because it is unknown to which of them the job belongs."""
    if not leases:
        return Absence("No operator has ever led on this cluster. Install the chart; then the job starts.")
    ages = []
    for lease in leases:
        spec = lease["spec"]
        age_s = now - seconds(str(spec["renewTime"])) if spec.get("renewTime") else float("inf")
        allowed_s = max(SHORTEST_S, 2.0 * float(spec.get("leaseDurationSeconds") or 0))
        if age_s < (allowed_s if spec.get("holderIdentity") else SHORTEST_S):
            return None
        ages.append(age_s)
    youngest_s = min(ages)
    since = f" for {duration(youngest_s)}" if youngest_s != float("inf") else ""
    return Absence(
        f"No operator has led{since}: this status was written before. Pods continue to train, and their agents "
        "restart ranks in place, but no pod is created or replaced."
    )


def _of_what_was_written(job: Object, status: JobState, now: float) -> Absence | None:
    """Return the absence where no Lease may be read. If a job steps rarely, its silence means nothing."""
    unread = "This command may not read the operator's Lease, so it cannot tell whether an operator is running."
    progress = status.progress
    if status.phase in STEPPING and progress.updatedAt:
        age_s = now - seconds(progress.updatedAt)
        if age_s >= max(2 * SHORTEST_S, STEPS / progress.stepsPerSecond if progress.stepsPerSecond > 0 else 0.0):
            return Absence(f"No operator has written progress of this job for {duration(age_s)}. {unread}")
    if not job.get("status"):
        age_s = now - seconds(str(job["metadata"]["creationTimestamp"]))
        if age_s >= SHORTEST_S:
            return Absence(f"No operator has looked at this job since it was created {duration(age_s)} ago. {unread}")
    return None


async def _leases(cluster: Cluster, pods: Sequence[Object]) -> Sequence[Object] | None:
    """Return the Leases of the cluster's operators; None if they may not be read. A pod of the job names the
    namespace of its own operator, whose Lease every user may read (`rbac.showLeader` of the chart)."""
    for namespace in sorted({found for pod in pods if (found := _namespace_of_operator(pod))}):
        try:
            return [await cluster.get(LEASE, namespace, LeaseSettings.name)]
        except NotFound:
            return []
        except ApiError:
            continue
    try:
        return (await cluster.list(LEASE, None, {LEASE_LABEL: LeaseSettings.name})).items
    except ApiError:
        return None


def _namespace_of_operator(pod: Object) -> str:
    """Return the namespace in the address that the pod's agent was given: https://SERVICE.NAMESPACE.svc:PORT."""
    for container in (pod.get("spec") or {}).get("containers") or []:
        for variable in container.get("env") or []:
            if variable.get("name") == environment.OPERATOR_URL:
                labels = (urlsplit(variable.get("value") or "").hostname or "").split(".")
                return labels[1] if len(labels) >= 3 and labels[2] == "svc" else ""
    return ""
