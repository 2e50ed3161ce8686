"""What a rank's Python stack shows, in the form in which its agent reports it: `File "…", line N, in name`, the most
recent call last."""

from __future__ import annotations

import re

_FRAME = re.compile(r'^\s*File "([^"]*)", line (\d+), in (.+)$', re.MULTILINE)

_MEETING = re.compile(r"torch/(distributed/|autograd/graph\.py)")
"""Files whose innermost call waits for other ranks: collectives, and the backward pass that ends in them."""


def innermost(stack: str, calls: int = 5) -> str:
    """Return the innermost calls as text, such as "inner (file.py:3) < outer (file.py:9)"; "" without a stack."""
    frames = _FRAME.findall(stack)[-calls:]
    return " < ".join(f"{name} ({path.rpartition('/')[2]}:{line})" for path, line, name in reversed(frames))


def waits(stack: str) -> bool:
    """Return whether the rank seems to wait for others. Return False without a stack."""
    frames = _FRAME.findall(stack)
    return bool(frames) and _MEETING.search(frames[-1][0]) is not None
