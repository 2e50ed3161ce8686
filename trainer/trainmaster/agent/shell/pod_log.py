"""The agent's own sentences in the log of its pod.

The log may take nothing: its disk is full, or its reader is gone. That is no reason for an agent to end or to leave
something undone, so nothing here raises.
"""

from __future__ import annotations

import contextlib
import os
import sys


def note(sentence: str) -> None:
    """Write a sentence to the log of this pod."""
    with contextlib.suppress(OSError, ValueError):
        print(_writable(f"[agent] {sentence}"), flush=True)


def complain(sentence: str) -> None:
    """Write to standard error why this agent ends."""
    with contextlib.suppress(OSError, ValueError):
        print(_writable(f"trainmaster agent: {sentence}"), file=sys.stderr, flush=True)


def finish() -> None:
    """Write what is left. If that is not possible, drop it: else Python would end with exit code 120 instead of the
    agent's own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def _writable(text: str) -> str:
    """Return a text with question marks in place of half surrogate pairs, which names of files may contain."""
    return text.encode(errors="replace").decode()
