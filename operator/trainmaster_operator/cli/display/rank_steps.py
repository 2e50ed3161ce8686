"""The steps of ranks as steps of the job: a script whose optimizer does not count steps counts from 0 in each process.

The operator corrects the steps in the status (`planning.facts.script_step_count`). What the control channel says about
ranks is not corrected there, so it is corrected here in the same way, and both numbers in the picture agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster_operator.planning.facts import script_step_count
from trainmaster_operator.planning.facts.job_state import JobState


class RankSteps:
    """Corrects the steps of ranks, and remembers where each round began, because the reports of a round are read for a
    moment after the status has gone on to the next one."""

    def __init__(self) -> None:
        self._began: dict[int, int] = {}

    def of_the_job(self, status: JobState, slots: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
        """Return the ranks of each slot with steps of the job. `slots`: those of the control channel."""
        loaded = {slot["round"] for slot in slots if _counts_alone(slot) and slot.get("loaded")}
        if status.round in loaded:
            saved_before = max((slot.get("saved_before") or 0 for slot in slots), default=0)
            self._began[status.round] = script_step_count.began_after(status, saved_before)
        return [
            [{**rank, "step": (rank["step"] or 0) + self._before(status, slot, loaded)} for rank in slot["ranks"]]
            for slot in slots
        ]

    def _before(self, status: JobState, slot: Mapping[str, Any], loaded: set[int]) -> int:
        number = slot["round"]
        if not _counts_alone(slot) or number not in loaded:
            return 0
        return status.progress.lastSave if number > status.round else self._began.get(number, 0)


def _counts_alone(slot: Mapping[str, Any]) -> bool:
    """Return whether the ranks of a slot did not say after which step of the job they began."""
    return slot.get("resumed_step") is None
