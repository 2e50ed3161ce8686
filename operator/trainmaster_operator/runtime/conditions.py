"""The one condition that belongs to the runtime: ReconcileError. All others are the planner's."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from trainmaster_operator.api.status import JobStatus

RECONCILE_ERROR = "ReconcileError"
_MESSAGE_LIMIT = 1000


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def without_reconcile_error(status: JobStatus) -> JobStatus:
    """The pass went well: the condition goes away."""
    if all(condition.type != RECONCILE_ERROR for condition in status.conditions):
        return status
    return status.model_copy(update={"conditions": [c for c in status.conditions if c.type != RECONCILE_ERROR]})


def set_reconcile_error(status: dict[str, Any], error: Exception, now: float) -> dict[str, Any] | None:
    """A raw status (which perhaps nobody can parse) with the condition; None when it says so already."""
    reason, message = type(error).__name__, str(error)[:_MESSAGE_LIMIT]
    raw = status.get("conditions")
    conditions = [c for c in raw if isinstance(c, dict)] if isinstance(raw, list) else []
    for condition in conditions:
        if condition.get("type") == RECONCILE_ERROR and condition.get("message") == message:
            return None
    mine = {
        "type": RECONCILE_ERROR,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(now),
    }
    return {**status, "conditions": [*(c for c in conditions if c.get("type") != RECONCILE_ERROR), mine]}
