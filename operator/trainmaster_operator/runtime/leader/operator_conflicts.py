"""Two installations that do not know of each other and manage the same job, each with its own Lease.

Each would raise its epoch above the other's for ever. One later epoch is no sign of this (the Lease was deleted, or the
job comes from another cluster). If later epochs appear again and again, there is another operator, and the job is left
alone for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.clock import Clock

MEETINGS = 5
WITHIN_S = 60.0
# The first and the longest time. After it, the jobs of a rival that was uninstalled are taken over.
QUIET_S = (60.0, 300.0)


class Rivalry(Exception):
    """Another operator manages this job too. The message is always the same."""

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
    """Counts, per job, how often another leader's later epoch was found."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[JobKey, _Rival] = {}

    def meet(self, key: JobKey) -> None:
        """Record that a job has a later epoch than ours. Raise Rivalry if that happens too often."""
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
