"""Whether what a command really said is what a page shows of it.

Numbers may differ, unless the page says that they are exact. A line of nothing but `...` stands for any number of
lines, `...` or `…` within a line for any text. Blanks stand for one another, so that columns may be of other widths.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?:[KMGT]\b)?"  # sizes may have another unit
_PIECE = re.compile(rf"(?P<any>\.\.\.|…)|(?P<number>(?<![\w.]){_NUMBER})|(?P<blank>\s+)")
_ANY_LINES = r"(?:.*\n)*?"


def pattern(shown: Sequence[str], exact: bool) -> re.Pattern[str]:
    """Return what the whole output must match."""
    return re.compile("".join(_line(line.strip(), exact) for line in shown) or _ANY_LINES)


def _line(line: str, exact: bool) -> str:
    if line in ("...", "…"):
        return _ANY_LINES
    done, end = r"[ \t]*", 0
    for found in _PIECE.finditer(line):
        done += re.escape(line[end : found.start()])
        if found["any"]:
            done += ".*"
        elif found["blank"]:
            done += r"[ \t]+"
        else:
            done += re.escape(found[0]) if exact else _NUMBER
        end = found.end()
    return done + re.escape(line[end:]) + r"[ \t]*\n"


def differences(shown: Sequence[str], said: str, exact: bool) -> str:
    """Return in words how the real output differs from what the page shows; empty if it doesn't, or shows nothing."""
    if not shown:
        return ""
    text = said.rstrip("\n") + "\n"
    if pattern(shown, exact).fullmatch(text):
        return ""
    return "\n".join(difflib.unified_diff([*shown], text.splitlines(), "the page", "the command", lineterm=""))
