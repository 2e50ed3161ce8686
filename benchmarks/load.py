"""How busy a machine is with other things: recorded with each sample, so that a reader can judge the figure."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from e2e import processor_time
from e2e.processor_time import Ticks

LOOK_S = 1.0


class Load(NamedTuple):
    """Of all cores together; 1.0 is one core."""

    busy: float
    stolen: float


def between(before: Ticks, after: Ticks, seconds: float, ticks_per_s: float) -> Load:
    """Return the load between two readings of the processors. Raises ValueError if no time passed."""
    if seconds <= 0:
        raise ValueError("no time passed between the two readings")
    spent, whole = after - before, seconds * ticks_per_s
    return Load(spent.used / whole, spent.stolen / whole)


def look(seconds: float = LOOK_S) -> Load:
    """Return the load of the next seconds, in which the caller does nothing."""
    began, before = time.monotonic(), processor_time.read()
    time.sleep(seconds)
    return between(before, processor_time.read(), time.monotonic() - began, os.sysconf("SC_CLK_TCK"))
