"""How metrics.jsonl is written: one JSON object per line, whole lines or nothing, NaN and infinity as strings."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_NAME = "metrics.jsonl"
_TAIL_BYTES = 64 * 1024
"""Size of the end of the file in which the last whole line is looked for."""
_STEPS_BYTES = 1 << 20
"""Size of the end of the file in which the steps of earlier rounds are looked for."""


class MetricsWriter:
    """Appends lines to metrics.jsonl. The file is opened when the first line is written."""

    def __init__(self) -> None:
        self._fd = -1
        self._lost = False  # a line was lost, which has been told

    def append(self, output: Path, line: Mapping[str, Any], event: Callable[[str, str], None]) -> None:
        """Append a whole line to the file in the folder `output`, or nothing.

        On a full disk, lines are lost, but training continues: the first lost line is reported by `event(reason,
        sentence)`.
        """
        try:
            self._append(output, line)
        except OSError as error:
            if not self._lost:
                self._lost = True
                event("MetricsNotWritten", f"{error}: training goes on, and lines of metrics.jsonl are missing")

    def _append(self, output: Path, line: Mapping[str, Any]) -> None:
        """Append a whole line, or nothing. Raises OSError."""
        data = json.dumps({key: finite(value) for key, value in line.items()}).encode() + b"\n"
        path = output / _NAME
        if self._fd < 0:
            output.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        # One write: lines stay whole, whatever ends this process.
        written = os.write(self._fd, data)
        if written < len(data):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def last_step(output: Path) -> int:
    """Return the step of the last whole line of metrics.jsonl in the folder `output`; 0 without one."""
    return next((step for step, _ in _newest_lines(output, _TAIL_BYTES)), 0)


def last_step_before(output: Path, step: int, round: int) -> int | None:
    """Return the highest step below `step` that rounds before `round` wrote into metrics.jsonl in the folder `output`;
    None if none of its newest lines tells one."""
    lines = _newest_lines(output, _STEPS_BYTES)
    return max((told for told, of_round in lines if told < step and of_round < round), default=None)


def _newest_lines(output: Path, size: int) -> Iterator[tuple[int, int]]:
    """Yield the step and the round of each whole line within the last `size` bytes of metrics.jsonl, newest first, up
    to one that cannot be read."""
    try:
        with open(output / _NAME, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            lines = file.read().split(b"\n")[:-1]
        for line in reversed(lines):
            values = json.loads(line)
            yield int(values["step"]), int(values.get("round", 0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return


def finite(value: Any) -> Any:
    """Return `value`, or a string if it is NaN or infinite: JSON has no such numbers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
