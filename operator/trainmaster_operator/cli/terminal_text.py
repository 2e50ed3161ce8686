"""Text that others wrote, such as the message of a failed rank, made harmless for a terminal.

A terminal obeys escape sequences: they move the cursor, hide what was printed and change the title. A job's status and
the messages of its pods have what the ranks of the job said, and the person who looks at them may be somebody else.
"""

from __future__ import annotations

import re
from typing import Any

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def without_controls(text: str) -> str:
    """Return a text without escape sequences and control characters, except tabs and line feeds."""
    return text if text.isprintable() else _CONTROL.sub("", without_escapes(text))


def without_escapes(text: str) -> str:
    """Return a text without escape sequences. Other control characters stay."""
    return _ESCAPE.sub("", text)


def all_without_controls(value: Any) -> Any:
    """Return JSON values of which every text that is not a key has no escape sequences and control characters."""
    if isinstance(value, str):
        return without_controls(value)
    if isinstance(value, dict):
        return {key: all_without_controls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [all_without_controls(inner) for inner in value]
    return value
