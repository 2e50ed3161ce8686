"""A rank's measurements of its own pace: the time of its steps, how much of it is waiting, and its pauses.

Limits on silence are derived from these numbers, so they are measured where nothing is missed: in the rank, at each of
its signs of life. This costs a few multiplications per step, and nothing waits for a device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from trainmaster.contract.wire.progress_record import Phase, Progress

WARM_UP = 3  # steps of a process that aren't told: things compile, caches fill, allocators grow
MOST = 10_000  # pauses that are counted
_FORGETS = 0.5 ** (1 / 5000)  # by which the longest pause shrinks with each further one
_SMOOTHING = 0.1  # weight of a new step in the smoothed ones
_TYPICAL = 0.02  # weight of a new pause in the typical one, which is a geometric mean

_NAMES: dict[int, str] = {Phase.SAVE: "save", Phase.EVAL: "eval"}


class Rhythm:
    """Fills the timing fields of a progress."""

    def __init__(self) -> None:
        self._phase: int = Phase.START  # since the last sign of life
        self._steps = 0
        self._stepped_ns = 0
        self._waited_ns = 0
        self._logs: dict[str, float] = {}

    def beat(self, progress: Progress, now: int) -> None:
        """Note a sign of life at `now`. `progress.beat_ns` still has the one before."""
        name = _NAMES.get(self._phase)
        if name is not None:
            pause = max(now - progress.beat_ns, 0)
            self._paused(progress, name, pause)
            total = f"{name}_total_ns"
            setattr(progress, total, getattr(progress, total) + pause)
            self._stepped_ns = 0  # the next step's time would hold it
        self._phase = progress.phase

    def stepped(self, progress: Progress, now: int, waited_ns: int) -> None:
        """Note that the host has completed a step at `now`, before its `beat`.

        `waited_ns` is the total waiting time of this process.
        """
        self._steps += 1
        if self._steps > WARM_UP:
            if self._phase == Phase.STEP:
                self._paused(progress, "step", max(now - progress.beat_ns, 0))
            if self._stepped_ns:
                weight = _SMOOTHING if progress.step_ns else 1.0
                seconds, waited = now - self._stepped_ns, waited_ns - self._waited_ns
                progress.step_ns += int(weight * (seconds - progress.step_ns))
                progress.wait_ns += int(weight * (min(waited, seconds) - progress.wait_ns))
        self._stepped_ns, self._waited_ns = now, waited_ns

    def _paused(self, progress: Progress, name: str, pause: int) -> None:
        count = min(getattr(progress, f"{name}_pauses") + 1, MOST)
        log = math.log(max(pause, 1))
        typical = self._logs.get(name, log)
        typical += max(1 / count, _TYPICAL) * (log - typical)
        self._logs[name] = typical
        setattr(progress, f"{name}_pauses", count)
        setattr(progress, f"{name}_typical_ns", int(math.exp(typical)))
        setattr(progress, f"{name}_longest_ns", max(pause, int(getattr(progress, f"{name}_longest_ns") * _FORGETS)))


def merge_pauses(ranks: Iterable[Progress]) -> dict[str, list[float]]:
    """Return the pauses of a pod's ranks, by phase: [count, typical, longest, total], the last three in seconds.

    Where ranks differ, the number that asks for more patience is taken.
    """
    found: dict[str, list[float]] = {}
    for progress in ranks:
        for name in ("step", "save", "eval"):
            count = getattr(progress, f"{name}_pauses")
            if not count:
                continue
            typical, longest = (getattr(progress, f"{name}_{which}_ns") / 1e9 for which in ("typical", "longest"))
            total = getattr(progress, f"{name}_total_ns", 0) / 1e9
            most = found.setdefault(name, [0.0, typical, 0.0, 0.0])
            found[name] = [max(most[0], count), min(most[1], typical), max(most[2], longest), max(most[3], total)]
    return found
