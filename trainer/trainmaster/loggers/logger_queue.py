"""The interface of a logger, and a queue of its numbers: a thread writes them, so that no step waits for a disk or a
server."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

MOST = 100_000  # points that wait; a server that is away for so long loses the oldest

LAST_WRITE_LIMIT_S = 10.0
"""Seconds that loggers have at the end of a run for their last points."""


class Point(NamedTuple):
    step: int
    at: float  # Unix seconds
    scalars: dict[str, float]


class Feed:
    def __init__(self) -> None:
        self.over = False  # nothing more will come
        self._waiting: deque[Point] = deque(maxlen=MOST)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None], name: str) -> None:
        """Start a thread that runs `work`, which must take points until there are no more, whatever fails."""
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def put(self, point: Point) -> None:
        with self._changed:
            if not self.over:
                self._waiting.append(point)
                self._changed.notify()

    def take(self, most: int) -> list[Point]:
        """Return the oldest waiting points, at most `most`. Wait for one. Return [] at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.over)
            return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def idle(self) -> bool:
        """Return True if all points have been taken."""
        return not self._waiting

    def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until no more points will come."""
        with self._changed:
            self._changed.wait_for(lambda: self.over, seconds)

    def close(self, timeout_s: float | None) -> None:
        """Let the thread take the points that are left."""
        with self._changed:
            self.over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)


Say = Callable[[str, str], None]
"""A function that is called once with (reason, message) if writing fails."""


class Target(Protocol):
    """The interface of a logger."""

    def begin(self, step: int) -> None:
        """Begin after `step`. Raises ConfigError for something that a person has to change."""

    def put(self, point: Point) -> None:
        """Take a point, and return at once."""

    def close(self, timeout_s: float | None, finished: bool) -> None:
        """Write what is left, within `timeout_s` seconds. With `finished`, the run is complete and will not be
        continued."""
