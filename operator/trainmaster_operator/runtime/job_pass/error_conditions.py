"""What a pass reports about a job that it cannot handle: the conditions ReconcileError and NeedsMigration, and events.

These two conditions belong to the runtime; all others belong to the planner. Both are set in the status as it is
stored, which may be invalid here. Nothing else in it changes, except that NeedsMigration replaces ReconcileError.
"""

from __future__ import annotations

import logging
from typing import Any

from trainmaster_operator.cluster.port import (
    JOB,
    Cluster,
    Invalid,
    Object,
)
from trainmaster_operator.planning.facts.foreign_conditions import fitting
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.observation import (
    EventType,
    Observation,
)
from trainmaster_operator.planning.lifecycle.jobs_of_earlier_versions import NEEDS_MIGRATION
from trainmaster_operator.runtime.cache.cache_records import JobRecord
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.job_pass.pod_dns_names import JobService, explain_no_names
from trainmaster_operator.runtime.lasting_api_failures import STATUS_WRITE, attempting
from trainmaster_operator.runtime.leader.lease import Leadership
from trainmaster_operator.runtime.observability.events import EventWriter, timestamp
from trainmaster_operator.runtime.observability.operator_metrics import Metrics

log = logging.getLogger(__name__)

RECONCILE_ERROR = "ReconcileError"
_MESSAGE_LIMIT = 1000


class ErrorConditions:
    """Sets and removes the conditions of the runtime. `service`: says whether a job's Service is refused."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        jobs: Informer[JobRecord],
        leader: Leadership,
        events: EventWriter,
        metrics: Metrics,
        service: JobService,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._jobs = jobs
        self._leader = leader
        self._events = events
        self._metrics = metrics
        self._service = service
        self._refused_condition: dict[JobKey, str] = {}  # Uids of jobs whose status cannot take NeedsMigration.

    def forget(self, key: JobKey) -> None:
        """Forget a job that is gone."""
        self._refused_condition.pop(key, None)

    async def quarantine(self, record: JobRecord, reason: str, message: str) -> None:
        """Set condition ReconcileError on a job that cannot be handled. Raise ApiError if it cannot be written."""
        await self._write_raw(record, set_reconcile_error(record.raw, reason, message, self._clock.now()))

    async def leave_alone(self, record: JobRecord) -> None:
        """Report that an earlier version started the job, and do nothing else. Its agents get no directives and
        continue as they do without an operator. An API server that also validates unchanged fields refuses the old
        status, and with it the condition; then there is only the event."""
        key = record.key
        status = set_needs_migration(record.raw, record.migration, self._clock.now())
        if status is None or self._refused_condition.get(key) == record.uid:
            return
        self._leader.check()
        try:
            await self._write_raw(record, status)
        except Invalid as error:
            self._refused_condition[key] = record.uid
            log.warning("%s: the condition %s was refused: %s", key, NEEDS_MIGRATION, error)
        self._events.remark(record, EventType.WARNING, NEEDS_MIGRATION, record.migration)

    async def tell_standing(self, record: JobRecord, observed: Observation) -> bool:
        """At the end of a successful pass, report what the API server still refuses if condition Scheduled cannot
        report it, and remove the report when it is accepted. Return whether the job has changed by that."""
        known = self._jobs.get(record.key)
        if known is None or known.uid != record.uid:
            return False
        record = known  # This pass may have written progress.
        standing, event = self._service.refusals.of(record.key, record.uid), "ServiceRefused"
        words = explain_no_names(standing) if standing is not None else ""
        refusal, status = observed.refusal, record.status
        if standing is None and refusal is not None and status.roundStore and not _rests(status.phase):
            standing, event = refusal, "PodsRefused"
            words = f"pods without ranks cannot be created: {standing.message}"
        if standing is None:
            if all(condition.type != RECONCILE_ERROR for condition in record.status.conditions):
                return False
            await self._write_raw(record, remove_reconcile_error(record.raw))
            return True
        if standing.passing:
            return False
        new = set_reconcile_error(record.raw, standing.reason, words, self._clock.now())
        if new is None:
            return False
        self._events.remark(record, EventType.WARNING, event, words)
        await self._write_raw(record, new)
        return True

    async def _write_raw(self, record: JobRecord, status: Object | None) -> None:
        """Write a status as it is; None means that nothing is to be written. Raise ApiError."""
        if status is not None:
            self._metrics.writes.labels("intent").inc()
            with attempting(STATUS_WRITE):
                self._jobs.wrote(await self._cluster.update_status(JOB, {**record.raw, "status": status}))


def _rests(phase: JobPhase) -> bool:
    """Return whether no pods are created in this phase."""
    return phase.finished or phase in (JobPhase.SUSPENDED, JobPhase.HELD)


def without_reconcile_error(status: JobState) -> JobState:
    """Return the state without condition ReconcileError."""
    if all(condition.type != RECONCILE_ERROR for condition in status.conditions):
        return status
    return status.model_copy(update={"conditions": [c for c in status.conditions if c.type != RECONCILE_ERROR]})


def set_reconcile_error(job: Object, reason: str, message: str, now: float) -> Object | None:
    """Return a job's status with condition ReconcileError; None if it has the same condition already."""
    return _with(job, RECONCILE_ERROR, reason, message, now)


def remove_reconcile_error(job: Object) -> Object:
    """Return a job's status without condition ReconcileError."""
    status: Object = job.get("status") or {}
    return {**status, "conditions": [c for c in status["conditions"] if c.get("type") != RECONCILE_ERROR]}


def set_needs_migration(job: Object, message: str, now: float) -> Object | None:
    """Return a job's status with condition NeedsMigration; None if it has the same condition already.

    A ReconcileError is removed: an operator of the former version sets it between the upgrade of the definition and its
    own end, because it does not know the new fields.
    """
    return _with(job, NEEDS_MIGRATION, "FormerVersion", message, now, instead_of=RECONCILE_ERROR)


def _with(job: Object, kind: str, reason: str, message: str, now: float, instead_of: str = "") -> Object | None:
    message = message[:_MESSAGE_LIMIT] or reason
    status = job.get("status")
    status = status if isinstance(status, dict) else {}
    raw = status.get("conditions")
    conditions = [c for c in raw if isinstance(c, dict)] if isinstance(raw, list) else []
    others = [c for c in conditions if c.get("type") not in (kind, instead_of)]
    known = next((c for c in conditions if c.get("type") == kind and c.get("status") == "True"), {})
    if known.get("message") == message and len(others) == len(conditions) - 1:
        return None
    mine: dict[str, Any] = {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": known.get("lastTransitionTime") or timestamp(now),
    }
    if generation := job["metadata"].get("generation"):
        mine["observedGeneration"] = generation
    return {**status, "conditions": fitting([*others, mine])}
