"""What the last lines that a rank printed say of its end, and how many of them are kept."""

from __future__ import annotations

import re

LAST_LINES = 20
"""Printed lines that are kept with a verdict."""

USAGE_ERROR = 2
"""Exit code of argparse, click and similar parsers if arguments are missing or wrong."""

_TRACEBACK = "Traceback (most recent call last):"
_BLAMES = re.compile(r"\berror\b", re.IGNORECASE)


def traceback_in(lines: list[str]) -> str:
    """Return the last Python traceback in a rank's output, "" without one.

    A progress bar may precede its first line, but not the others.
    """
    for start in range(len(lines) - 1, -1, -1):
        before, found, rest = lines[start].partition(_TRACEBACK)
        if found and (not before or "".join(lines[start + 1 : start + 2]).startswith(" ")):
            return "\n".join([found + rest, *lines[start + 1 :]])
    return ""


def exception_in(text: str) -> str:
    """Return the line of a traceback that names the exception.

    The lines after it may be the rest of a long message, or later output of the program.
    """
    lines = text.strip().splitlines()
    return next((line for line in lines[1:] if line.strip() and not line[0].isspace()), lines[-1])


def exceptions_in(text: str) -> list[str]:
    """Return the lines of a traceback that name the exceptions: the last one at the end, those that led to it
    before."""
    return [exception_in(_TRACEBACK + part) for part in text.split(_TRACEBACK)[1:]]


def last_said(lines: list[str], code: int) -> str:
    """Return the line of an output that says why a program ended, "" without one.

    For a usage error it is the last line that contains the word error, because libraries may print other lines after
    it.
    """
    said = [line.strip() for line in lines if line.strip()]
    if code == USAGE_ERROR:
        errors = [line for line in said if _BLAMES.search(line)]
        said = errors or said
    return said[-1] if said else ""
