"""Operators that don't know of each other and manage the same job: two installations, each with a Lease of its own.

Each would outgrow the other's epoch for ever. A later epoch that is met once is no sign of it (the Lease was deleted,
the job comes from another cluster); one that is met again and again is, and then the job is left alone for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.clock import Clock

MEETINGS = 5
WITHIN_S = 60.0
QUIET_S = (60.0, 300.0)  # the first and the longest: a rival that is uninstalled leaves its jobs to us after that


class Rivalry(Exception):
    """Another operator manages this job too. Always the same words."""

    def __init__(self) -> None:
        super().__init__(
            "another operator manages this job too: uninstall one of them, or let them watch different namespaces"
        )


@dataclass
class _Rival:
    since: float
    meetings: int = 0
    quiet_s: float = 0.0
    quiet_until: float = float("-inf")


class Rivals:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[JobKey, _Rival] = {}

    def meet(self, key: JobKey) -> None:
        """A job has met a leader of a later epoch than ours. Raises Rivalry when that happens too often."""
        now = self._clock.monotonic()
        rival = self._known.get(key)
        if rival is None or now - max(rival.since, rival.quiet_until) > WITHIN_S:
            rival = self._known[key] = _Rival(now)
        if now < rival.quiet_until:
            raise Rivalry
        rival.meetings += 1
        if rival.meetings > MEETINGS:
            first, longest = QUIET_S
            rival.quiet_s = min(longest, rival.quiet_s * 2 or first)
            rival.quiet_until = now + rival.quiet_s
            raise Rivalry

    def forget(self, key: JobKey) -> None:
        self._known.pop(key, None)
