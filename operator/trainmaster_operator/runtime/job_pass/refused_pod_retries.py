"""What the API server refused: remembered per job, reported to the planner, and tried again later.

Only this leader remembers it: a new leader tries at once and gets the same answer.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from trainmaster.contract.wire import Cause
from trainmaster_operator.cluster.kubernetes_errors import FULL_QUOTA
from trainmaster_operator.cluster.port import ApiError, Forbidden, Invalid
from trainmaster_operator.planning.facts.observation import Refusal
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.lasting_api_failures import (
    TOLD_AFTER_S,
    is_terminating,
    may_pass,
    reason_of,
    words_of,
)

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 8.0
"""Longest wait in seconds. The operator may not read quotas and policies, so it must try again to learn that one was
changed."""

TRIES_PER_S = 20.0
"""Maximum number of tries a second over all jobs. If many jobs wait, each of them waits longer."""

FIRST_MOMENT_S = 0.1  # First wait in seconds after a refusal that may pass in a moment.
LONGEST_MOMENT_S = 5.0  # Longest wait in seconds after such a refusal.
NEVER_S = float("inf")

NAME_TAKEN = "NameTaken"  # An object of somebody else has the name.
NAME_IN_USE = "NameInUse"  # An object of a previous job with this name still exists and is being deleted.
QUOTA_EXCEEDED = "QuotaExceeded"  # There is room again when something else in the namespace ends.


class Refused(Exception):
    """A pod, or an object that it needs, could not be created. `reason`: a word for the condition. `may_pass`: it
    may succeed in a moment. `final`: it will never be accepted, so it is not tried again. `wait_s`: seconds for
    which the server asks to wait."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        fatal: bool = False,
        may_pass: bool = False,
        final: bool = False,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.fatal = fatal
        self.may_pass = may_pass
        self.final = final
        self.retry_after_s = retry_after_s


def refused(error: ApiError) -> Refused:
    """Return the refusal that an API error describes, in the server's words."""
    words, final = words_of(error), is_terminating(error)
    if isinstance(error, Forbidden):
        if FULL_QUOTA in str(error):
            reason = QUOTA_EXCEEDED
        else:
            reason = reason_of(error) if final else Cause.REFUSED.value
        return Refused(reason, words, final=final, retry_after_s=error.retry_after_s)
    if isinstance(error, Invalid):
        return Refused(Cause.CONFIG_ERROR.value, words, retry_after_s=error.retry_after_s)
    return Refused(reason_of(error), words, may_pass=may_pass(error), retry_after_s=error.retry_after_s)


@dataclass(frozen=True)
class _Known:
    uid: str
    refused: Refused
    tries: int  # Number of tries in succession for this reason.
    since: float  # Monotonic time at which the first of all tries in succession failed.
    until: float


class Refusals:
    """The last refusal of each job, and when the refused request is tried again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[JobKey, _Known] = {}

    def note(self, key: JobKey, uid: str, error: Refused) -> None:
        """Record a refusal. The wait doubles with each refusal for the same reason; it stays short if the reason may
        pass."""
        now = self._clock.monotonic()
        known = self._known.get(key)
        if known is not None and known.uid != uid:
            known = None
        again = known is not None and known.refused.reason == error.reason and error.reason != NAME_IN_USE
        tries = known.tries + 1 if known is not None and again else 1
        since = known.since if known is not None else now
        self._known[key] = _Known(uid, error, tries, since, now + self._wait_s(uid, error, tries))

    def of(self, key: JobKey, uid: str) -> Refusal | None:
        """Return the refusal of a job for the planner, or None."""
        known = self._known.get(key)
        if known is None or known.uid != uid:
            return None
        now, error = self._clock.monotonic(), known.refused
        passing = error.may_pass and now - known.since < TOLD_AFTER_S
        return Refusal(error.reason, str(error), max(0.0, known.until - now), error.fatal, passing)

    def forget(self, key: JobKey) -> None:
        self._known.pop(key, None)

    def _wait_s(self, uid: str, error: Refused, tries: int) -> float:
        if error.final:
            return NEVER_S
        if error.may_pass:
            wait_s = min(LONGEST_MOMENT_S, FIRST_MOMENT_S * 2.0 ** min(tries - 1, 16))
            # The waits differ between jobs, so that not all of them try at once when a server comes back; for one job
            # the wait is always the same.
            wait_s *= 1 - zlib.crc32(f"{uid}/{tries}".encode()) / 2**33
        else:
            longest_s = max(LONGEST_WAIT_S, len(self._known) / TRIES_PER_S)
            wait_s = min(longest_s, FIRST_WAIT_S * 2.0 ** min(tries - 1, 16))
        return max(wait_s, error.retry_after_s)
