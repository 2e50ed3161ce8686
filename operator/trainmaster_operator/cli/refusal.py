"""Bad input from a user: it is reported in sentences on stderr, with exit code 2 and without a traceback."""

from __future__ import annotations

from collections.abc import Sequence

EXIT_CODE = 2


class Refusal(Exception):
    """Bad input. Each line is one sentence about one problem: where it is, what is wrong, and what would be right."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines: Sequence[str] = lines


def why(error: OSError) -> str:
    """Return the system's message about a file as the end of a sentence."""
    return (error.strerror or str(error)).lower()
