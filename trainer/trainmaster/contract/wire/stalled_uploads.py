"""Uploads of checkpoints without progress: when storage counts as not answering, and what an agent reports then."""

from __future__ import annotations

from dataclasses import dataclass

STALLED_AFTER_S = 60.0
"""Seconds without progress of an upload after which its storage counts as not answering."""


@dataclass(frozen=True)
class UploadReport:
    """An upload that makes no progress because storage fails or does not answer."""

    rank: int
    step: int
    storage: str
    still_s: float  # since it last wrote anything, or since its attempts fail
    error: str = ""  # why its last attempt failed; "": storage does not answer
