"""The DNS names of a job's pods: when the Service that gives them is created, and what happens if it is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cluster.port import SERVICE, ApiError, Cluster, NotFound, Object
from trainmaster_operator.planning.facts.observation import Observation, Refusal
from trainmaster_operator.runtime.cache.cache_records import JobRecord
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.job_pass.name_conflicts import check_owner
from trainmaster_operator.runtime.job_pass.refused_pod_retries import Refusals, Refused, refused
from trainmaster_operator.runtime.lasting_api_failures import attempting
from trainmaster_operator.runtime.leader.lease import Leadership

log = logging.getLogger(__name__)

MANY = 64
"""Number of workers from which a job gets its Service only when its pods run. With each new pod, a cluster lists all
pods of a Service again: for 1,000 pods that cost as much as a third of creating them."""


def explain_no_names(refusal: Refusal) -> str:
    """Return what people read when the Service is refused."""
    return f"its pods have no DNS names: {refusal.message}"


class DnsService:
    """Writes the Service of a job, which gives its pods their names."""

    def __init__(
        self,
        cluster: Cluster,
        leader: Leadership,
        build_service: Callable[[DistributedTrainingJob], Object],
        served: Callable[[Object], object] = lambda service: None,
    ) -> None:
        """`served`: called with each Service that was found or created."""
        self._cluster = cluster
        self._leader = leader
        self._build_service = build_service
        self._tell_served = served
        self._served: dict[JobKey, str] = {}  # Uids of jobs that have their Service.

    async def prepare(self, record: JobRecord) -> None:
        """Before the job's first pod: create the Service, unless the job has many pods. Raise Refused and ApiError."""
        await self._write(record, make=not _is_large(record))

    def is_lacking(self, record: JobRecord) -> bool:
        """Return whether the job still needs its Service, as far as it is known here. Only a job with many pods can
        have pods without its Service."""
        return _is_large(record) and self._served.get(record.key) != record.uid

    async def serve(self, record: JobRecord) -> None:
        """Create the job's Service. Raise Refused and ApiError."""
        await self._write(record)
        self._served[record.key] = record.uid

    def forget(self, key: JobKey) -> None:
        """Forget a job that is gone."""
        self._served.pop(key, None)

    async def _write(self, record: JobRecord, make: bool = True) -> None:
        """Apply the Service, so that it gets the form of a newer operator, but never change a Service of somebody
        else."""
        assert record.job is not None
        body = self._build_service(record.job)
        name = body["metadata"]["name"]
        with attempting(f"Service {name} can't be created or changed"):
            await self._apply(record, name, body, make)

    async def _apply(self, record: JobRecord, name: str, body: Object, make: bool) -> None:
        try:
            found = await self._cluster.get(SERVICE, record.key.namespace, name)
        except NotFound:
            pass
        else:
            check_owner(SERVICE, found, record)
            if _holds(found, body):
                self._tell_served(found)
                return
        if not make:
            return
        self._leader.check()
        self._tell_served(await self._cluster.apply(SERVICE, body))


def _is_large(record: JobRecord) -> bool:
    assert record.job is not None
    return record.job.spec.workers.replicas >= MANY


def _holds(found: Any, wanted: Any) -> bool:
    """Return whether `found` contains everything in `wanted`."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and _holds(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(_holds(a, b) for a, b in zip(found, wanted, strict=True))
        )
    return bool(found == wanted)


class JobService:
    """The Service of each job.

    `services`: the uids of the jobs that own them; None if pods need no names.
    """

    def __init__(self, clock: Clock, dns: DnsService, services: Informer[str] | None) -> None:
        self._dns, self._services = dns, services
        self.refusals = Refusals(clock)
        """What was refused, by job. Pods do not wait for a Service."""

    async def serve(self, record: JobRecord, observed: Observation) -> None:
        """Create the job's Service when it is time. Raise NotLeading.

        A job with many pods gets its Service when all of them run, and in any case before ranks start, because their
        scripts may look up each other's names at once. A deleted Service is created again as soon as the watch reports
        it. A refusal stops nothing, because most jobs do not use the names.
        """
        lacking = self._dns.is_lacking(record)
        lost = not lacking and bool(observed.pods) and self._has_lost(record)
        if not (lacking or lost) or record.deleting or record.status.phase.finished:
            self.refusals.forget(record.key)
            return
        assert record.job is not None
        if lacking:
            running = sum(1 for pod in observed.pods if pod.phase == "Running")
            if not record.status.roundStore and running < record.job.spec.workers.replicas:
                return
        known = self.refusals.of(record.key, record.uid)
        if known is not None and known.again_in_s > 0:
            return
        try:
            await self._dns.serve(record)
        except (Refused, ApiError) as error:
            log.warning("%s: its Service could not be made: %s", record.key, error)
            words = error if isinstance(error, Refused) else refused(error)
            self.refusals.note(record.key, record.uid, words)
        else:
            self.refusals.forget(record.key)

    def due_s(self, record: JobRecord) -> float:
        """Return the seconds until a refused Service is tried again; infinity if none was refused."""
        refusal = self.refusals.of(record.key, record.uid)
        return refusal.again_in_s if refusal is not None else float("inf")

    def _has_lost(self, record: JobRecord) -> bool:
        """Return whether the Service that was created before the first pod no longer exists."""
        if self._services is None or not self._services.synced.is_set():
            return False
        return self._services.get(record.key) != record.uid
