"""Names of files that are being written. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path


def temporary(target: Path) -> Path:
    """Return a hidden name beside `target` that no other writer chooses.

    Neither the process id nor a counter can tell writers apart: the agent is process 1 in every pod, and pods share a
    volume. The random part comes from the kernel, since processes that are forked share the state of `random`.
    """
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}")
