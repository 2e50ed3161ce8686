"""Conditions that other programs set on a job, as `kubectl patch --subresource=status` or another controller does.

They are kept, because the list belongs to all programs that write conditions: each of them owns its own types. But the
API takes at most MOST of them, so where there are more, the foreign ones that have not changed for the longest time
give way to our own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

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

T = TypeVar("T")


def fitting(conditions: Sequence[T], describe: Callable[[T], tuple[str, str]]) -> list[T]:
    """Return the conditions without the oldest foreign ones if there are more than MOST. The order stays.

    `describe`: returns the type of a condition and its lastTransitionTime.
    """
    foreign = [one for one in conditions if describe(one)[0] not in OWN]
    foreign.sort(key=lambda one: describe(one)[1])
    dropped = {id(one) for one in foreign[: max(0, len(conditions) - MOST)]}
    return [one for one in conditions if id(one) not in dropped]
