"""When a run completes steps, as seen from outside: from the file that rank 0 writes a line to for each."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass
from pathlib import Path

LOOK_EVERY_S = 0.005


@dataclass(frozen=True)
class Interruption:
    """Seconds: for how long no step was completed, and from what caused it to the first step again. Who is told that a
    pod has to go trains on for a while, so the second may be longer."""

    stood_still: float
    until_training: float


class Steps:
    """When the file of completed steps grew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seen: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Steps:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        size = -1
        while not self._over.wait(LOOK_EVERY_S):
            now = self._path.stat().st_size if self._path.exists() else 0
            if now != size:
                size = now
                self.seen.append(time.monotonic())

    def interruption(self, since: float) -> Interruption:
        """The longest stretch without a step after `since`."""
        last = max((at for at in self.seen if at <= since), default=since)
        times = [last, *(at for at in self.seen if at > since)]
        begin, end = max(itertools.pairwise(times), key=lambda pair: pair[1] - pair[0])
        return Interruption(end - begin, end - since)
