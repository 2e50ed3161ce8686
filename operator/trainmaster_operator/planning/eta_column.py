"""The expected time until the end of a job, as `kubectl get dtj` shows it: in which phases, and in which units."""

from __future__ import annotations

GOES_ON = ("Starting", "Running", "Recovering", "Resizing", "Suspending")
"""Phases in which an expected time until the end makes sense."""


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units, as kubectl shows an age: 45s, 3m20s, 2h5m, 4d7h."""
    left = max(0, round(seconds))
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    parts = ((days, "d"), (hours, "h"), (minutes, "m"), (left, "s"))
    first = next((n for n, (value, _) in enumerate(parts) if value), 3)
    return "".join(f"{value}{unit}" for value, unit in parts[first : first + 2] if value) or "0s"
