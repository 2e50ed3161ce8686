"""How busy a machine is with other things: recorded with each sample, so that a reader can judge the figure."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

LOOK_S = 1.0
_STOLEN = 7  # column of /proc/stat: time that the hypervisor gave to others
_RESTS = (3, 4)  # idle, and waiting for a disk


class Load(NamedTuple):
    """Of all cores together; 1.0 is one core."""

    busy: float
    stolen: float


def between(before: str, after: str, seconds: float, ticks_per_s: float) -> Load:
    """Return the load between two readings of the first line of /proc/stat. Raises ValueError if no time passed."""
    if seconds <= 0:
        raise ValueError("no time passed between the two readings")
    spent = [int(b) - int(a) for a, b in zip(before.split()[1:9], after.split()[1:9], strict=True)]
    whole = seconds * ticks_per_s
    busy = sum(ticks for column, ticks in enumerate(spent) if column not in (*_RESTS, _STOLEN))
    return Load(busy / whole, spent[_STOLEN] / whole)


def look(seconds: float = LOOK_S) -> Load:
    """Return the load of the next seconds, in which the caller does nothing."""
    began, before = time.monotonic(), _first_line()
    time.sleep(seconds)
    return between(before, _first_line(), time.monotonic() - began, os.sysconf("SC_CLK_TCK"))


def _first_line() -> str:
    return Path("/proc/stat").read_text().partition("\n")[0]
