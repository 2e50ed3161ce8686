"""Goodput on one line, with the largest loss if much was lost."""

from __future__ import annotations

from trainmaster_operator.cli.display.number_words import seconds
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.lifecycle.goodput import CHECKPOINT, EVALUATION, OTHER, RESUME

MUCH_IS_LOST = 0.95
"""Below this goodput, the largest loss is named."""

_WORDS = {CHECKPOINT: "saves", EVALUATION: "evaluation", RESUME: "resume", OTHER: "unknown cause"}
"""Losses that are not called after the cause of a failure."""


def describe(status: JobState) -> str:
    """Return the goodput of a job that has one, in words."""
    words = f"goodput {status.goodput}"
    if float(status.goodput) >= MUCH_IS_LOST or not any(status.lost.values()):
        return words
    cause, lost_s = max(status.lost.items(), key=lambda item: item[1])
    return f"{words} ({_WORDS.get(cause, cause)} {seconds(lost_s)})"
