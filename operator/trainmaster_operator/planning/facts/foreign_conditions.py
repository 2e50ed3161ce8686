"""Conditions that other programs set on a job, as `kubectl patch --subresource=status` or another controller does.

They are kept, because the list belongs to all programs that write conditions: each of them owns its own types. But the
API takes at most MOST of them, so where there are more, the foreign ones that have not changed for the longest time
give way to our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST = 32
"""Maximum number of conditions of a job, as its definition says."""

OWN = frozenset(
    {
        *("Running", "Recovering", "Suspended", "Held", "Complete", "Failed"),
        *("Scheduled", "SizeAsWished", "RevisionPending", "RevisionLost", "OperatorAbsent"),
        *("CheckpointFailed", "CheckpointStalled", "Unprotected"),
        *("ReconcileError", "NeedsMigration"),
    }
)
"""The types of all conditions that the operator sets."""


def fitting(conditions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return conditions, as the API has them, without the oldest foreign ones if there are more than MOST. The order
    stays."""
    foreign = [one for one in conditions if one.get("type") not in OWN]
    foreign.sort(key=lambda one: str(one.get("lastTransitionTime", "")))
    dropped = {id(one) for one in foreign[: max(0, len(conditions) - MOST)]}
    return [one for one in conditions if id(one) not in dropped]
