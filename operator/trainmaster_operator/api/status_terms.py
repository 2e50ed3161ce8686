"""What all groups of a job's status share: its phases, the rungs of a recovery, and how a time is written."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, WithJsonSchema

Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""RFC 3339 in UTC with milliseconds."""


class JobPhase(str, Enum):
    PENDING = "Pending"  # pods are missing or have no agent yet
    STARTING = "Starting"  # a round is open, its ranks haven't stepped yet
    RUNNING = "Running"
    RECOVERING = "Recovering"  # after a failure, until the first step of the new round
    RESIZING = "Resizing"  # saving before it goes on with another number of pods, until the first step of that round
    SUSPENDING = "Suspending"  # saving before it stops
    SUSPENDED = "Suspended"
    HELD = "Held"  # stopped by a rule, with its pods kept, until a person suspends it
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def finished(self) -> bool:
        return self is _SUCCEEDED or self is _FAILED


_SUCCEEDED, _FAILED = JobPhase.SUCCEEDED, JobPhase.FAILED  # a look into an enum is slow, and each pass takes many


class Rung(str, Enum):
    """The recovery ladder, lowest first."""

    IN_PLACE = "inPlace"
    POD = "pod"
    FULL = "full"
    SHRINK = "shrink"  # with fewer pods, when nothing else is left
    FREE = "free"  # counts nothing: evictions, suspends, resizes, lost stores


class Group(BaseModel):
    model_config = ConfigDict(extra="ignore")
