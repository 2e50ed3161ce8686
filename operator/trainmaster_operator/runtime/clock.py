"""Time and randomness are injected. Only this module of the runtime may read the real clock."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """A source of time. Sleeping is `asyncio.sleep`: the event loop uses the same time."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary moment. It never jumps."""
        ...

    def now(self) -> float:
        """Return the seconds since 1970, UTC."""
        ...


class RealClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> float:
        return time.time()


def micro_time(now: float) -> str:
    """Return a time in seconds since 1970 as metav1.MicroTime."""
    return datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
