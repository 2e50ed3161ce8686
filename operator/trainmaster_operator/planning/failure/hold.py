"""A job that a rule holds: its ranks have ended and its pods stay as they are, so that a person can inspect them.

Suspending the job deletes the pods; resuming it continues with new ones (docs/decisions/009).
"""

from __future__ import annotations

from trainmaster_operator.planning.facts.change import Change, changed, warning
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.failure import failure_budget
from trainmaster_operator.planning.lifecycle import revision, suspend
from trainmaster_operator.planning.rounds import open_round

WAY_OUT = "suspend and resume the job to continue it"


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
    """Suspend a held job once a person asks for it. The failure is answered then, so the restarts for its cause no
    longer count."""
    if not view.spec.suspend and not revision.restart_asked(view):
        return None
    change = suspend.stopped(view, "the job was held, so there was nothing to save")
    spent = failure_budget.cleared(view.status.spent)
    return Change(change.status.model_copy(update={"spent": spent}), change.events)
