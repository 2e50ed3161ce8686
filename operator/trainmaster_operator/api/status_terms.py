"""Types that all groups of a job's status share: the phases of a job, the rungs of a recovery, and the format of a
time."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, WithJsonSchema

Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time in RFC 3339, in UTC with milliseconds."""


class JobPhase(str, Enum):
    """The state of a job in one word."""

    PENDING = "Pending"  # Pods are missing, or their agents have not reported yet.
    STARTING = "Starting"  # A round is open, and its ranks have not completed a step.
    RUNNING = "Running"
    RECOVERING = "Recovering"  # The job restarts after a failure. The phase ends with the first step of the new round.
    # The job saves and continues with another number of pods. The phase ends with the first step of the new round.
    RESIZING = "Resizing"
    SUSPENDING = "Suspending"  # The job saves before it stops.
    SUSPENDED = "Suspended"
    HELD = "Held"  # A rule stopped the job and kept its pods until a person suspends the job.
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def finished(self) -> bool:
        """True if the job has succeeded or failed."""
        return self is _SUCCEEDED or self is _FAILED


# Access to a member of an enum is slow, and each pass needs many of them.
_SUCCEEDED, _FAILED = JobPhase.SUCCEEDED, JobPhase.FAILED


class Rung(str, Enum):
    """The rungs of the recovery ladder, lowest first."""

    IN_PLACE = "inPlace"
    POD = "pod"
    FULL = "full"
    SHRINK = "shrink"  # The job continues with fewer pods, because no other rung is left.
    FREE = "free"  # The restart uses no budget: evictions, suspends, resizes and lost stores.


class Group(BaseModel):
    """Base class of the groups of fields in a job's status."""

    model_config = ConfigDict(extra="ignore")
