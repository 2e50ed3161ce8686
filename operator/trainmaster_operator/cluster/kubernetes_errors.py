"""The meaning of a refusal by a real API server: its Status body (the reason first, then the code) as an error of
the port."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from trainmaster_operator.cluster.port import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Object,
    TooManyRequests,
    Unavailable,
)

SHOWN_BYTES = 300  # Number of bytes that are shown of a body that is no Status.
LONGEST_RETRY_AFTER_S = 30.0
"""Longest wait in seconds that a server, or a proxy before it, can impose; some ask for hours."""

NO_ANSWER = "NoAnswer"
TIMEOUT = "Timeout"

FULL_QUOTA = "exceeded quota"
"""What the API server says in a Forbidden that a ResourceQuota has caused."""

_BY_REASON: dict[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "BadRequest": Invalid,
    "Conflict": Conflict,
    "Expired": Gone,
    "Forbidden": Forbidden,
    "Gone": Gone,
    "InternalError": Unavailable,
    "Invalid": Invalid,
    "NotFound": NotFound,
    "RequestEntityTooLarge": Invalid,
    "ServerTimeout": Unavailable,
    "ServiceUnavailable": Unavailable,
    "Timeout": Unavailable,
    "TooManyRequests": TooManyRequests,
    # Our own credentials are refused: a token was just rotated, or an authenticator has a problem.
    "Unauthorized": Unavailable,
}
_BY_CODE: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unavailable,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    410: Gone,
    413: Invalid,
    422: Invalid,
    429: TooManyRequests,
}
_SAID_BY_CODE = {401: "Unauthorized", 408: TIMEOUT, 500: "InternalError", 504: TIMEOUT}
_SAID = {name for name, known in _BY_REASON.items() if known is Unavailable}
"""Reasons that all mean for a program that it may try again. The message for people keeps the reason."""


def refusal(call: str, code: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """Return the error for an answer with this HTTP status. `call` names the request if the body does not."""
    status = _status(body)
    if status is None:
        text = body[:SHOWN_BYTES].decode(errors="replace").strip()
        said = _SAID_BY_CODE.get(code, "")
        return _made(_by_code(code), f"{call}: HTTP {code}: {text}".rstrip(": "), said, retry_after)
    details = status.get("details") or {}
    said = status.get("reason") or _SAID_BY_CODE.get(code, "")
    return _made(_class_of(status, code), _words(call, status), said, retry_after or details.get("retryAfterSeconds"))


def unanswered(call: object, error: Exception) -> Unavailable:
    """Return the error for a call that got no answer, or none in time."""
    failure = Unavailable(f"{call}: {str(error) or type(error).__name__}")
    failure.said = TIMEOUT if isinstance(error, TimeoutError) else NO_ANSWER
    return failure


def refusal_in_stream(call: str, status: Any) -> ApiError:
    """Return the error for an ERROR event of a watch: Gone, or Unavailable for everything else, because a new watch
    may work."""
    if not isinstance(status, dict):
        return Unavailable(f"{call}: {str(status)[:SHOWN_BYTES]}")
    known = Gone if _class_of(status, status.get("code") or 500) is Gone else Unavailable
    return known(_words(call, status))


def _status(body: bytes) -> Object | None:
    try:
        status = json.loads(body)
    except ValueError:  # The page of a proxy, or plain text.
        return None
    return status if isinstance(status, dict) and status.get("kind") == "Status" else None


def _class_of(status: Object, code: int) -> type[ApiError]:
    return _BY_REASON.get(status.get("reason") or "") or _by_code(code)


def _by_code(code: int) -> type[ApiError]:
    return _BY_CODE.get(code) or (Unavailable if code >= 500 else ApiError)


def _words(call: str, status: Object) -> str:
    return status.get("message") or f"{call}: {status.get('reason') or 'refused without a reason'}"


def _made(known: type[ApiError], message: str, said: str, retry_after: object) -> ApiError:
    error = known(message)
    if isinstance(error, Unavailable):
        error.said = said if said in _SAID else ""
    with suppress(TypeError, ValueError):  # An HTTP date, which no API server sends, is ignored.
        error.retry_after_s = min(LONGEST_RETRY_AFTER_S, max(0.0, float(retry_after or 0)))  # type: ignore[arg-type]
    return error
