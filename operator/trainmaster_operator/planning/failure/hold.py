"""A job that waits for a person: its ranks have ended, its pods stay as they are, so that somebody can look.

Suspending the job lets the pods go; resuming it goes on with fresh ones (docs/decisions/009).
"""

from __future__ import annotations

from trainmaster_operator.planning.facts.change import Change, changed, warning
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.failure import failure_budget
from trainmaster_operator.planning.lifecycle import revision, suspend
from trainmaster_operator.planning.rounds import open_round

WAY_OUT = "suspend and resume the job to go on"


def held(view: View, fault: Fault) -> Change:
    """Return the change that holds the job: its ranks are fenced off and end, and nothing else happens."""
    status = view.status
    return changed(
        status,
        warning("Held", f"{fault.title}: {fault.message[:700]}; {fault.rule} holds the job: {WAY_OUT}"),
        phase=JobPhase.HELD,
        round=status.round + 1 if view.round_is_open else status.round,
        lastFailure=fault.record(view),
        recoveries=suspend.given_up(status.recoveries, view.now),
        **open_round.forming(view),
    )


def release(view: View) -> Change | None:
    """Suspend a held job once a person asks for it. That answers the failure, so its cause counts from zero again."""
    if not view.spec.suspend and not revision.restart_asked(view):
        return None
    change = suspend.stopped(view, "it was held, and nothing had to be saved")
    spent = failure_budget.cleared(view.status.spent)
    return Change(change.status.model_copy(update={"spent": spent}), change.events)
