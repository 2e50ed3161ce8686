"""How a run's time was spent, as a table: on useful steps, and what the rest was lost to."""

from __future__ import annotations

from trainmaster.contract.wire.causes_and_exit_codes import Cause
from trainmaster_operator.cli.display.number_words import seconds
from trainmaster_operator.cli.display.recovery_tables import Table
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.lifecycle.goodput import CHECKPOINT, EVALUATION, OTHER, RESUME

STEPS = "steps"

MEANINGS = {
    CHECKPOINT: "Training stood still for a save.",
    EVALUATION: "Training stood still for an evaluation.",
    RESUME: "The run was stopped and started again: the time from that start to its first step, and the steps that it "
    "did again because the stop came after the last save. The time between the stop and the start is not counted.",
    OTHER: "The cause of this lost time is unknown.",
}
"""The meaning of losses that are not caused by a failure."""

_FAILURE = (
    "Lost to failures of this cause: from the last step that was completed before a failure to the end of the first "
    "step after it, and the steps that ran again."
)
_WITH_WAIT = " The time in which the ranks stood still, before the hang was found, is part of it."


def meaning(name: str) -> str:
    """Return the explanation of a part of the time; "" for the steps that count."""
    if name in MEANINGS:
        return MEANINGS[name]
    if name not in list(Cause):
        return ""
    return _FAILURE + (_WITH_WAIT if name == Cause.HANG else "")


def parts(status: JobState) -> list[tuple[str, float]]:
    """Return (what, seconds) from the first step to the last account, without the time of stops, the largest loss
    first; [] before there is anything."""
    if not status.firstStepAt or not status.accountedAt:
        return []
    lost = sorted(status.lost.items(), key=lambda item: (item[0] == OTHER, -item[1], item[0]))
    return [(name, s) for name, s in [(STEPS, status.usefulSeconds), *lost] if s >= 0.0005]


def table(status: JobState) -> Table:
    """Return a row for each part of the time, with its share of all of it."""
    found = parts(status)
    wall = sum(s for _, s in found)
    rows = tuple((name, seconds(s), f"{100 * s / wall:.1f} %") for name, s in found)
    return Table(("what", "time", "share"), rows, (False, True, True))
