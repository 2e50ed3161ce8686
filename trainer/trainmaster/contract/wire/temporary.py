"""Files that are written whole or not at all, and the names that they have until then. Standard library only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def temporary(target: Path) -> Path:
    """Return a hidden name beside `target` that no other writer chooses.

    Neither the process id nor a counter can tell writers apart: the agent is process 1 in every pod, and pods share a
    volume. The random part comes from the kernel, since processes that are forked share the state of `random`.
    """
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}")


def replace(target: Path, data: bytes) -> None:
    """Give a file other content at once: whoever reads it sees the old or the new one.

    Raises OSError; the file is as it was then, and nothing lies beside it. A power failure may undo it.
    """
    being_written = temporary(target)
    try:
        being_written.write_bytes(data)
        being_written.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            being_written.unlink(missing_ok=True)
        raise
