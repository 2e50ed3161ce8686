"""The reason beside a job's phase, as `kubectl get dtj` shows it: that of the condition that explains the phase."""

from __future__ import annotations

from trainmaster_operator.planning.facts.job_state import JobState

_EXPLAINED_BY = {
    "Pending": "Scheduled",
    "Starting": "Scheduled",
    "Recovering": "Recovering",
    "Suspended": "Suspended",
    "Held": "Held",
    "Succeeded": "Complete",
    "Failed": "Failed",
}

_TROUBLES = ("ReconcileError", "RevisionLost")
"""Conditions that matter more than the phase."""


def reason_of_phase(state: JobState) -> str:
    """Return the reason of the condition that explains the phase, or of a condition that matters more."""
    kind, reason = _EXPLAINED_BY.get(state.phase.value, "Running"), ""
    for condition in state.conditions:
        if condition.type in _TROUBLES and condition.status == "True":
            return condition.reason
        if condition.type == kind:
            reason = condition.reason
    return reason
