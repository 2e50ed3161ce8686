"""What a rank of our own loop saves when a peer has died: the last completed step, and the one under way if possible.

That step can be completed if any rank has the sums that this rank lacks (see `roll_forward`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trainmaster.train.manifest_fields import manifest_fields

if TYPE_CHECKING:
    from trainmaster.train.loop import Training


def save_after_failure(training: Training) -> int | None:
    """Save the last completed step, and then the next one, if any rank has the sums that this rank lacks.

    Return the step that the agent's memory has then; None if no step is worth saving.
    """
    prepared, sums = training.prepared, training.sums
    # While another thread than the main one saves, that may still be in the last all-reduce, and get through.
    raised = threading.current_thread() is threading.main_thread()
    sums.tell(last_word=prepared is None or raised)
    saved = _save_last(training)
    if prepared is not None:
        totals = sums.ask(prepared.step)
        sums.tell(last_word=True)
        if totals is not None:
            training.complete(prepared, totals)
            saved = _save_last(training) or saved
    return saved


def _save_last(training: Training) -> int | None:
    if not training.numbers.are_sound_at(training.step):
        return None
    return training.session.rescue(training.step, manifest_fields(training))
