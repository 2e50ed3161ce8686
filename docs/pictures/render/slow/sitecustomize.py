"""A file system that gets slower, for the processes that have this folder in their PYTHONPATH.

SLOW_FILES is "SECONDS,EVERY": from so many seconds after the start of the process on, whoever waits for the disk waits
longer, by a second more in every EVERY seconds.
"""

from __future__ import annotations

import os
import time

_BEGAN = time.monotonic()
_AFTER_S, _EVERY_S = (float(part) for part in os.environ.get("SLOW_FILES", "1e9,1").split(","))
_fsync = os.fsync


def _slow(descriptor: int) -> None:
    late_s = time.monotonic() - _BEGAN - _AFTER_S
    if late_s > 0:
        time.sleep(late_s / _EVERY_S)
    _fsync(descriptor)


os.fsync = _slow  # type: ignore[assignment]
