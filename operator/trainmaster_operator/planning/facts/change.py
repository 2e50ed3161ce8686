"""What a policy returns to `plan`: a new status with its events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainmaster_operator.planning.facts.job_state import Condition
from trainmaster_operator.planning.facts.observation import EventType, JobState, PlannedEvent
from trainmaster_operator.planning.facts.timestamps import rfc3339

MESSAGE = 1024  # Maximum number of characters of a condition's message.


@dataclass(frozen=True)
class Change:
    """An intent: a new status with its events. It is written before anything is done about it."""

    status: JobState
    events: tuple[PlannedEvent, ...] = ()


def changed(status: JobState, *events: PlannedEvent, **fields: Any) -> Change:
    """Return a change that sets the given fields of the status and emits the given events."""
    return Change(status.model_copy(update=fields), events)


def known_condition(status: JobState, kind: str) -> Condition | None:
    """Return the condition of this type in the status, or None if it has none."""
    for known in status.conditions:  # A loop, because each pass asks some ten times.
        if known.type == kind:
            return known
    return None


def condition(status: JobState, kind: str, holds: bool, reason: str, message: str, now: float) -> Condition:
    """Return a condition as it is now. Its time is the time since which its status has been the same."""
    known, value = known_condition(status, kind), "True" if holds else "False"
    since = known.lastTransitionTime if known is not None and known.status == value else rfc3339(now)
    return Condition.model_validate(
        {
            "type": kind,
            "status": value,
            "reason": reason or kind,
            "message": message[:MESSAGE],
            "lastTransitionTime": since,
            "observedGeneration": status.observedGeneration,
        }
    )


def normal(reason: str, message: str) -> PlannedEvent:
    """Return an event of type Normal."""
    return PlannedEvent(EventType.NORMAL, reason, message)


def warning(reason: str, message: str) -> PlannedEvent:
    """Return an event of type Warning."""
    return PlannedEvent(EventType.WARNING, reason, message)
