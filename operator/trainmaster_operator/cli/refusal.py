"""Bad input from a person: told in sentences on stderr, exit code 2, no traceback."""

from __future__ import annotations

from collections.abc import Sequence

EXIT_CODE = 2


class Refusal(Exception):
    """Each line is one sentence about one problem: where it is, what is wrong, what would be right."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines: Sequence[str] = lines


def why(error: OSError) -> str:
    """Return what the system says of a file, as the end of a sentence."""
    return (error.strerror or str(error)).lower()
