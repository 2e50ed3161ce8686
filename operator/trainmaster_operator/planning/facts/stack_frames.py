"""What a Python stack or a traceback of a rank shows: frames such as `File "…", line N, in name`, the most recent call
last."""

from __future__ import annotations

import re

_FRAME = re.compile(r'^\s*File "([^"]*)", line (\d+), in (.+)$', re.MULTILINE)

_FRAME_AND_SOURCE = re.compile(_FRAME.pattern + r"(?:\n {4}(\S.*)$)?", re.MULTILINE)

_MEETING = re.compile(r"torch/(distributed/|autograd/graph\.py)")
"""Files whose innermost call waits for other ranks: collectives, and the backward pass that ends in them."""

_LIBRARY = re.compile(r"^<|/(?:site|dist)-packages/|/lib/python\d")
"""Files that a user has not written: installed packages, and the standard library."""


def innermost(stack: str, calls: int = 5) -> str:
    """Return the innermost calls as text, such as "inner (a.py:3: sleep(9)) < outer (a.py:9)"; "" without a stack.

    A call has its source line if the stack has it.
    """
    frames = _FRAME_AND_SOURCE.findall(stack)[-calls:]
    return " < ".join(
        f"{name} ({path.rpartition('/')[2]}:{line}{f': {source}' if source else ''})"
        for path, line, name, source in reversed(frames)
    )


def waits(stack: str) -> bool:
    """Return whether the rank seems to wait for others. Return False without a stack."""
    frames = _FRAME.findall(stack)
    return bool(frames) and _MEETING.search(frames[-1][0]) is not None


def place(stack: str) -> tuple[str, str]:
    """Return the file and the line of the innermost call; ("", "") without a stack."""
    frames = _FRAME.findall(stack)
    return (frames[-1][0], frames[-1][1]) if frames else ("", "")


def is_in_own_code(stack: str) -> bool:
    """Return whether the innermost Python call is in a file of the user, and in no library. Return False without a
    stack."""
    file, _ = place(stack)
    return file != "" and _LIBRARY.search(file) is None


def raised_at(traceback: str) -> tuple[str, str, str]:
    """Return the last frame of a traceback: the file, the line and the function; ("", "", "") if there is none."""
    frames: list[tuple[str, str, str]] = _FRAME.findall(traceback)
    return frames[-1] if frames else ("", "", "")
