"""Files that are either written completely or not at all. Standard library only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def temporary(target: Path) -> Path:
    """Return a hidden name in the folder of `target` that no other writer chooses.

    Neither the process id nor a counter can tell writers apart: the agent is process 1 in every pod, and pods share a
    volume. The random part comes from the kernel, because forked processes share the state of `random`.
    """
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}")


def replace(target: Path, data: bytes) -> None:
    """Replace the content of a file in one operation: a reader gets either the old or the new content.

    Raises OSError. Then the file is unchanged, and no temporary file is left. A power failure may undo the change.
    """
    being_written = temporary(target)
    try:
        being_written.write_bytes(data)
        being_written.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            being_written.unlink(missing_ok=True)
        raise
