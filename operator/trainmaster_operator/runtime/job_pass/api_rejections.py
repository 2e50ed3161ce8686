"""What the API server didn't take: remembered per job, told to the planner, and tried again after a while.

Soft state: a new leader tries at once, and hears the same words.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.contract.wire import Cause
from trainmaster_operator.cluster.port import ApiError, Forbidden, Invalid
from trainmaster_operator.planning.facts.observation import Refusal
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.clock import Clock

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
NAME_TAKEN = "NameTaken"  # by an object of somebody else
NAME_IN_USE = "NameInUse"  # by one of an earlier job of this name, which is on its way out


class Refused(Exception):
    """A pod, or what it needs, couldn't be created. `reason`: a word for the condition."""

    def __init__(self, reason: str, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.fatal = fatal


def refused(error: ApiError) -> Refused | None:
    """A refusal in the server's words; None for an error that isn't one."""
    if isinstance(error, Forbidden):
        return Refused(Cause.REFUSED.value, str(error))
    if isinstance(error, Invalid):
        return Refused(Cause.CONFIG_ERROR.value, str(error))
    return None


@dataclass(frozen=True)
class _Known:
    uid: str
    reason: str
    message: str
    wait_s: float
    until: float
    fatal: bool


class Refusals:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[JobKey, _Known] = {}

    def note(self, key: JobKey, uid: str, error: Refused) -> None:
        """Each time in a row for the same reason waits twice as long. What passes by itself is not waited for long."""
        known = self._known.get(key)
        again = known is not None and (known.uid, known.reason) == (uid, error.reason) and error.reason != NAME_IN_USE
        wait_s = min(LONGEST_WAIT_S, known.wait_s * 2) if known is not None and again else FIRST_WAIT_S
        until = self._clock.monotonic() + wait_s
        self._known[key] = _Known(uid, error.reason, str(error), wait_s, until, error.fatal)

    def of(self, key: JobKey, uid: str) -> Refusal | None:
        known = self._known.get(key)
        if known is None or known.uid != uid:
            return None
        return Refusal(known.reason, known.message, max(0.0, known.until - self._clock.monotonic()), known.fatal)

    def forget(self, key: JobKey) -> None:
        self._known.pop(key, None)
