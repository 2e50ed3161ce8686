"""What loggers have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from trainmaster.loggers.feed import Point

Say = Callable[[str, str], None]
"""Is told (reason, message) once if writing fails."""


class Target(Protocol):
    """Where numbers go."""

    def begin(self, step: int) -> None:
        """Training goes on from `step`. Raises ConfigError for what a person has to change."""

    def put(self, point: Point) -> None:
        """Returns at once."""

    def close(self, timeout_s: float | None, finished: bool) -> None:
        """Write what is left, for so long at most. `finished`: the run is complete, nobody goes on with it."""
