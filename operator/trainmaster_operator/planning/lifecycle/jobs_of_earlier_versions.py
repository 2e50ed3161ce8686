"""Jobs that an earlier version of the operator started. They are recognised, reported and left alone.

Their status has another layout, so nothing in it may be read as if this version had written it. No pod is created or
deleted for them, and their status is not rewritten; only one condition is added.
"""

from __future__ import annotations

from typing import Any

from trainmaster_operator.api.validation import former_spelling

NEEDS_MIGRATION = "NeedsMigration"
"""The type of the condition on such a job."""

_AT_THE_TOP = ("incarnations", "roundMap", "roundStore", "leaderEpoch")
"""Fields at the top of the former status that are parts of groups now."""

_WAY_OUT = (
    "so the operator leaves the job and its pods as they are: the phase and the step in this status are no longer "
    "updated. Let the job end by itself or delete it, rewrite its manifest with trainmaster migrate, and submit it "
    "again"
)


def former_status(status: Any) -> str:
    """Return why a job is left alone whose status is in the former layout, as a sentence; "" for any other status."""
    if not isinstance(status, dict):
        return ""
    flat = isinstance(status.get("round"), int) or isinstance(status.get("goodput"), str)
    if not flat and not any(name in status for name in _AT_THE_TOP):
        return ""
    return f"An earlier version of Trainmaster wrote the status of this job, {_WAY_OUT}"


def former_spec(spec: Any) -> str:
    """Return why a job is left alone whose spec is in the former spelling, as a sentence; "" for any other spec."""
    found = former_spelling.fields(spec)
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"The spec of this job is in the spelling of an earlier version ({found[0]}{more}), {_WAY_OUT}"
