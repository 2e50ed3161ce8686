"""What a program does when the reader of its standard output has gone, as with `| head`."""

from __future__ import annotations

import sys

CLOSED = 128 + 13  # SIGPIPE, as shells tell it


def closed() -> int:
    """Stop the interpreter from writing what is left into the closed pipe. Return the exit code."""
    sys.stdout = None
    return CLOSED
