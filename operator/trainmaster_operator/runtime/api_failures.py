"""Calls of the API server that fail: what a person is told of them, and since when a job meets them.

Most failures pass within a second: a server is restarted, an object was changed by somebody else, a connection breaks.
Of those nobody is told. One that lasts is told in the server's own words.
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
"""A failure that may pass is told when it has lasted for so long."""

WEBHOOK_FAILED = "WebhookFailed"
NAMESPACE_TERMINATING = "NamespaceTerminating"
OTHER = "Other"
REASONS = (
    *("Conflict", "Forbidden", "InternalError", "Invalid", NAMESPACE_TERMINATING, "NoAnswer", "NotFound"),
    *("ServerTimeout", "ServiceUnavailable", "Timeout", "TooManyRequests", "Unauthorized", WEBHOOK_FAILED, OTHER),
)
"""What `reason_of` says, for the labels of metrics: a server may have further reasons, which are Other there."""

STATUS_WRITE = "its status can't be written"

_MAY_PASS = (AlreadyExists, Conflict, TooManyRequests, Unavailable)
_WEBHOOK = "failed calling webhook"
_TERMINATING = "because it is being terminated"


def may_pass(error: ApiError) -> bool:
    """Whether the same call may well be accepted a moment later."""
    return isinstance(error, _MAY_PASS)


def is_terminating(error: ApiError) -> bool:
    """Whether the namespace is being deleted: nothing can be created in it any more, however often it is tried."""
    return isinstance(error, Forbidden) and _TERMINATING in str(error)


def reason_of(error: ApiError) -> str:
    """One word for a condition: the server's own, unless it hides what is wrong."""
    if is_terminating(error):
        return NAMESPACE_TERMINATING
    if isinstance(error, Unavailable) and _WEBHOOK in str(error):
        return WEBHOOK_FAILED  # the server says InternalError, and somebody else is to blame
    return error.said or error.reason


def words_of(error: Exception) -> str:
    """What could not be done, and the server's words."""
    attempt = error.attempt if isinstance(error, ApiError) else ""
    return f"{attempt}: {error}" if attempt else str(error)


@contextmanager
def attempting(what: str) -> Iterator[None]:
    """An ApiError that is raised inside says that this could not be done: "pod x can't be deleted". The innermost one
    counts."""
    try:
        yield
    except ApiError as error:
        error.attempt = error.attempt or what
        raise


@dataclass(frozen=True)
class _Failing:
    since: float
    reason: str


class ApiFailures:
    """Jobs whose passes fail, one after the other, because of the API server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing: dict[JobKey, _Failing] = {}
        self._not_before: dict[JobKey, float] = {}

    def note(self, key: JobKey, error: ApiError) -> bool:
        """A pass has failed. Return whether a person is to be told: the failure doesn't pass, or hasn't yet."""
        now = self._clock.monotonic()
        known = self._failing.get(key)
        since = known.since if known is not None else now
        self._failing[key] = _Failing(since, reason_of(error))
        if error.wait_s > 0:
            self._not_before[key] = now + error.wait_s
        return not may_pass(error) or now - since >= TOLD_AFTER_S

    def passed(self, key: JobKey) -> None:
        """A pass went well, or the job is gone."""
        self._failing.pop(key, None)
        self._not_before.pop(key, None)

    def wait_s(self, key: JobKey) -> float:
        """How long the server asks to be left alone with this job."""
        return max(0.0, self._not_before.get(key, 0.0) - self._clock.monotonic())

    def reasons(self) -> Counter[str]:
        """How many jobs fail now, by reason; of REASONS only."""
        known = frozenset(REASONS)
        return Counter(f.reason if f.reason in known else OTHER for f in self._failing.values())
