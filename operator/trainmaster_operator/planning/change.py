"""What a policy hands to `plan`: a new status with its events, or a time at which it may have one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainmaster_operator.planning.observation import EventType, JobStatus, PlannedEvent

RECOVERIES = 10
"""Recoveries that the status keeps."""


@dataclass(frozen=True)
class Change:
    """An intent: it is written before anything is done about it."""

    status: JobStatus
    events: tuple[PlannedEvent, ...] = ()


def changed(status: JobStatus, *events: PlannedEvent, **fields: Any) -> Change:
    return Change(status.model_copy(update=fields), events)


def normal(reason: str, message: str) -> PlannedEvent:
    return PlannedEvent(EventType.NORMAL, reason, message)


def warning(reason: str, message: str) -> PlannedEvent:
    return PlannedEvent(EventType.WARNING, reason, message)
