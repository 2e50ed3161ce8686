"""Whether an operator looks after a job now, and what follows for what its status says.

A status says nothing of its own age: with no operator it goes on to say Running. The operator's Lease tells when one
last led. Where a person may not read it, the age of what was written has to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from trainmaster.contract.wire import environment
from trainmaster_operator.api.meta import unpack_counts
from trainmaster_operator.cluster.objects import seconds
from trainmaster_operator.cluster.port import LEASE, ApiError, Cluster, NotFound, Object
from trainmaster_operator.manifests.object_names import pod_name
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.planning.facts.view import WORKER
from trainmaster_operator.planning.lifecycle.operator_absence import SHORTEST_S
from trainmaster_operator.planning.status_mapping import duration
from trainmaster_operator.runtime.leader.lease import LEASE_LABEL, LeaseSettings

STEPS = 10  # that a job would have done in the time after which the lack of them is told
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
    """Return what is to be said of a job that nobody looks after. None: an operator leads, the job has ended, or it is
    not known. `pods`: of the job. `now`: seconds since 1970."""
    if status.phase.finished:
        return None
    leases = await _leases(cluster, pods)
    if leases is None:
        return _of_what_was_written(job, status, now)
    return _of_leases(leases, now)


async def absence_of_any(cluster: Cluster, now: float) -> Absence | None:
    """The same before there is a job: None if an operator leads, or if nothing is known."""
    leases = await _leases(cluster, ())
    return _of_leases(leases, now) if leases is not None else None


def missing_pods(name: str, status: JobState, pods: Sequence[PodRecord], gone: Absence | None) -> Iterator[PodRecord]:
    """Yield a record for each pod that the job ought to have by its status and that is not there."""
    if status.phase in WITHOUT_PODS or (gone is None and status.phase is JobPhase.PENDING):
        return  # a job that is being started gets its pods one after another
    there = {pod.name for pod in pods}
    why = "nobody creates it again while no operator leads" if gone else "it is created again"
    for slot, incarnation in enumerate(unpack_counts(status.incarnations)):
        expected = pod_name(name, WORKER, slot, incarnation)
        if expected not in there:
            yield PodRecord(expected, "", WORKER, slot, incarnation, MISSING, message=why)


def _of_leases(leases: Sequence[Object], now: float) -> Absence | None:
    """Of several operators, each for a namespace of its own, one that leads is enough: whose the job is isn't known."""
    if not leases:
        return Absence("No operator has ever led on this cluster: install the chart, and the job begins.")
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
        f"No operator has led{since}: this status was written before. Pods go on by themselves, and their agents "
        "restart ranks in place, but no pod is created or replaced."
    )


def _of_what_was_written(job: Object, status: JobState, now: float) -> Absence | None:
    """Where no Lease may be read. Silence of a job that steps seldom says nothing."""
    unread = "The operator's Lease cannot be read, so whether one is there is not known."
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
    """Of the operators of the cluster; None if they may not be read. A pod of the job names the namespace of its own
    operator, whose Lease every user may read (`rbac.showLeader` of the chart)."""
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
    """From the address that its agent was given: https://SERVICE.NAMESPACE.svc:PORT."""
    for container in (pod.get("spec") or {}).get("containers") or []:
        for variable in container.get("env") or []:
            if variable.get("name") == environment.OPERATOR_URL:
                labels = (urlsplit(variable.get("value") or "").hostname or "").split(".")
                return labels[1] if len(labels) >= 3 and labels[2] == "svc" else ""
    return ""
