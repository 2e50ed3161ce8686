"""Calls of the API server that fail: what is reported about them, and since when a job is affected.

Most failures pass within a second: a server is restarted, somebody else changed an object, a connection breaks. These
are not reported. A failure that lasts is reported in the server's own words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trainmaster_operator.cluster.port import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    TooManyRequests,
    Unavailable,
)
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.clock import Clock

TOLD_AFTER_S = 3.0
"""Seconds after which a failure that may pass is reported."""

WEBHOOK_FAILED = "WebhookFailed"
NAMESPACE_TERMINATING = "NamespaceTerminating"
OTHER = "Other"
REASONS = (
    *("Conflict", "Forbidden", "InternalError", "Invalid", NAMESPACE_TERMINATING, "NoAnswer", "NotFound"),
    *("ServerTimeout", "ServiceUnavailable", "Timeout", "TooManyRequests", "Unauthorized", WEBHOOK_FAILED, OTHER),
)
"""The values of `reason_of` that are used as labels of metrics. A server may have further reasons, which become
Other."""

STATUS_WRITE = "its status can't be written"

_MAY_PASS = (AlreadyExists, Conflict, TooManyRequests, Unavailable)
_WEBHOOK = "failed calling webhook"
_TERMINATING = "because it is being terminated"


def may_pass(error: ApiError) -> bool:
    """Return whether the same call may be accepted a moment later."""
    return isinstance(error, _MAY_PASS)


def is_terminating(error: ApiError) -> bool:
    """Return whether the namespace is being deleted. Then nothing can be created in it any more."""
    return isinstance(error, Forbidden) and _TERMINATING in str(error)


def reason_of(error: ApiError) -> str:
    """Return one word for a condition: the server's own reason, unless it hides what is wrong."""
    if is_terminating(error):
        return NAMESPACE_TERMINATING
    if isinstance(error, Unavailable) and _WEBHOOK in str(error):
        return WEBHOOK_FAILED  # The server says InternalError, but the webhook is to blame.
    return error.said or error.reason


def words_of(error: Exception) -> str:
    """Return what could not be done, followed by the server's words."""
    attempt = error.attempt if isinstance(error, ApiError) else ""
    return f"{attempt}: {error}" if attempt else str(error)


@contextmanager
def attempting(what: str) -> Iterator[None]:
    """Name the attempt for every ApiError that is raised inside, such as "pod x can't be deleted". With nested calls
    the innermost name is kept."""
    try:
        yield
    except ApiError as error:
        error.attempt = error.attempt or what
        raise


@dataclass(frozen=True)
class _Failing:
    """The failures of one job in succession. `since`: monotonic time of the first one."""

    since: float
    reason: str


class ApiFailures:
    """Jobs whose last passes failed because of the API server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing: dict[JobKey, _Failing] = {}
        self._not_before: dict[JobKey, float] = {}

    def note(self, key: JobKey, error: ApiError) -> bool:
        """Record a failed pass. Return whether the failure must be reported: it cannot pass, or it has lasted too
        long."""
        now = self._clock.monotonic()
        known = self._failing.get(key)
        since = known.since if known is not None else now
        self._failing[key] = _Failing(since, reason_of(error))
        if error.retry_after_s > 0:
            self._not_before[key] = now + error.retry_after_s
        return not may_pass(error) or now - since >= TOLD_AFTER_S

    def passed(self, key: JobKey) -> None:
        """Forget the failures of a job whose pass succeeded, or that is gone."""
        self._failing.pop(key, None)
        self._not_before.pop(key, None)

    def wait_s(self, key: JobKey) -> float:
        """Return the seconds for which the server asks not to be called about this job."""
        return max(0.0, self._not_before.get(key, 0.0) - self._clock.monotonic())

    def reasons(self) -> Counter[str]:
        """Return how many jobs fail now, by reason; all keys are in REASONS."""
        known = frozenset(REASONS)
        return Counter(f.reason if f.reason in known else OTHER for f in self._failing.values())
