"""When a run completes steps, as seen from outside: from the file that rank 0 writes a line to for each."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

LOOK_EVERY_S = 0.005


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

    def interruption(self, since: float) -> float:
        """Seconds from `since` to the end of the longest stretch without a step after it."""
        times = [since, *(at for at in self.seen if at > since)]
        return max(itertools.pairwise(times), key=lambda pair: pair[1] - pair[0])[1] - since
