"""Times in the status (RFC 3339, UTC, milliseconds) from and to seconds since 1970."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import lru_cache


@lru_cache(maxsize=256)
def rfc3339(seconds: float) -> str:
    """Return a time of the status for seconds since 1970: 1.5 -> "1970-01-01T00:00:01.500Z"."""
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@lru_cache(maxsize=4096)
def seconds_of(text: str) -> float:
    """Return the seconds since 1970 of a time of the status: "1970-01-01T00:00:01.500Z" -> 1.5."""
    return datetime.fromisoformat(text).timestamp()


def since(text: str, now: float) -> float:
    """Return the seconds from `text` to `now`; 0 for an empty text.

    Never negative: clocks of two leaders may differ.
    """
    return max(0.0, now - seconds_of(text)) if text else 0.0


def until(text: str, now: float) -> float:
    """Return the seconds from `now` to `text`, never negative; 0 for an empty text."""
    return max(0.0, seconds_of(text) - now) if text else 0.0
