"""The DNS names of a job's pods: when the Service that gives them is created, and what happens if it is refused."""

from __future__ import annotations

import logging

from trainmaster_operator.cluster.port import ApiError
from trainmaster_operator.planning.facts.observation import Observation, Refusal
from trainmaster_operator.runtime.cache.cache_records import JobRecord
from trainmaster_operator.runtime.cache.informer import Informer
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.job_pass.job_prerequisites import Surroundings
from trainmaster_operator.runtime.job_pass.refused_pod_retries import Refusals, Refused, refused

log = logging.getLogger(__name__)


def explain_no_names(refusal: Refusal) -> str:
    """Return what people read when the Service is refused."""
    return f"its pods have no DNS names: {refusal.message}"


class JobService:
    """The Service of each job.

    `services`: the uids of the jobs that own them; None if pods need no names.
    """

    def __init__(self, clock: Clock, surroundings: Surroundings, services: Informer[str] | None) -> None:
        self._surroundings, self._services = surroundings, services
        self.refusals = Refusals(clock)
        """What was refused, by job. Pods do not wait for a Service."""

    async def serve(self, record: JobRecord, observed: Observation) -> None:
        """Create the job's Service when it is time. Raise NotLeading.

        A job with many pods gets its Service when all of them run, and in any case before ranks start, because their
        scripts may look up each other's names at once. A deleted Service is created again as soon as the watch reports
        it. A refusal stops nothing, because most jobs do not use the names.
        """
        lacking = self._surroundings.lacks_service(record)
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
            await self._surroundings.serve(record)
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
