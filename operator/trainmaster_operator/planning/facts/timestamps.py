"""Conversion of times between the status (RFC 3339, UTC, milliseconds) and seconds since 1970."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import lru_cache


@lru_cache(maxsize=256)
def rfc3339(seconds: float) -> str:
    """Return a time in seconds since 1970 as text: 1.5 -> "1970-01-01T00:00:01.500Z"."""
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@lru_cache(maxsize=4096)
def seconds_of(text: str) -> float:
    """Return a time in seconds since 1970: "1970-01-01T00:00:01.500Z" -> 1.5. Raise ValueError for text that is no
    time."""
    return datetime.fromisoformat(text).timestamp()


def since(text: str, now: float) -> float:
    """Return the seconds from `text` to `now`. The result is never negative, because clocks of two leaders may
    differ; it is 0 for an empty text."""
    return max(0.0, now - seconds_of(text)) if text else 0.0


def until(text: str, now: float) -> float:
    """Return the seconds from `now` to `text`, never negative; 0 for an empty text."""
    return max(0.0, seconds_of(text) - now) if text else 0.0
