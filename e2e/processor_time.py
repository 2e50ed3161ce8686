"""What the processors did, as the kernel counts it, and limits that don't run while the machine is held up.

A virtual machine whose host is busy gets its processors late, or waits for its disk. A limit by the clock would then
fail a test whose jobs did all that they could.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MOST = 4.0
"""A limit becomes at most so many times as long: it comes to an end on any machine."""

_STAT = Path("/proc/stat")


class Ticks(NamedTuple):
    """The time of all processors since the machine started, in the kernel's ticks."""

    used: int
    idle: int
    waited: int  # idle, while something waited for the disk
    stolen: int  # wanted, but the host gave it to others

    @classmethod
    def parse(cls, text: str) -> Ticks:
        """Read the first line of /proc/stat, whose fields proc(5) names."""
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, text.split("\n", 1)[0].split()[1:9])
        return cls(user + nice + system + irq + softirq, idle, iowait, steal)

    def __sub__(self, before: Ticks) -> Ticks:
        return Ticks(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def total(self) -> int:
        return sum(self)

    @property
    def held_up(self) -> float:
        """The share of the time in which the host or the disk held the machine up."""
        return (self.waited + self.stolen) / max(1, self.total)

    def describe(self) -> str:
        """Return the words for a span between two readings."""
        parts = (self.used, self.stolen, self.waited)
        used, stolen, waited = (round(100 * part / max(1, self.total)) for part in parts)
        return (
            f"the processors worked for {used} % of the time; for {stolen} % the host gave them to other machines, and "
            f"for {waited} % they waited for the disk"
        )


def read() -> Ticks:
    return Ticks.parse(_STAT.read_text())


class Limit:
    """A number of seconds from now on, less the time in which the machine was held up."""

    def __init__(
        self, seconds: float, now: Callable[[], float] = time.monotonic, ticks: Callable[[], Ticks] = read
    ) -> None:
        self._seconds, self._now, self._ticks = seconds, now, ticks
        self._began_s, self._before = now(), ticks()

    def left_s(self) -> float:
        """Return how many seconds are left if the machine is not held up from now on; 0 or less: none."""
        counts = max(1.0 / MOST, 1.0 - self.meanwhile().held_up)
        return self._seconds - (self._now() - self._began_s) * counts

    def meanwhile(self) -> Ticks:
        """Return what the processors did since the limit began."""
        return self._ticks() - self._before
