"""What of the error messages of two failures is compared, to know whether they are the same failure."""

from __future__ import annotations

import re

from trainmaster.contract.wire import Verdict
from trainmaster_operator.planning.facts.fault import MESSAGE

_VARIES = re.compile(r"0x[0-9a-fA-F]+|(?:/[^\s'\":,;()]+)+|\b[0-9a-fA-F]{8,}\b|\d+")
"""What differs between ranks and between tries: addresses, paths, identifiers, numbers."""


def way_of(verdict: Verdict) -> tuple[str, int | None, str]:
    """Return in which way a rank failed: its cause, its exit code, and its message without what varies."""
    return verdict.cause.value, verdict.exit_code, without_what_varies(verdict.message)


def without_what_varies(message: str) -> str:
    """Return the beginning of an error message without addresses, paths, identifiers and numbers: two failures are
    the same if this part of their messages is."""
    return " ".join(_VARIES.sub("#", message[:MESSAGE]).split())
