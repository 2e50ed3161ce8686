"""The conditions that belong to the runtime: ReconcileError and NeedsMigration. All others belong to the planner.

Both are set in the status as it is stored, which may be invalid here. Nothing else in it changes, except that
NeedsMigration replaces ReconcileError.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from trainmaster_operator.cluster.port import Object
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.lifecycle.jobs_of_earlier_versions import NEEDS_MIGRATION

RECONCILE_ERROR = "ReconcileError"
_MESSAGE_LIMIT = 1000


def timestamp(seconds: float) -> str:
    """Return a time in seconds since 1970 as RFC 3339, in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
    return {**status, "conditions": [*others, mine]}
