"""A common stop: all ranks save the same step and end, without a collective.

`stop_at` is chosen above the highest step, every agent acknowledges having put it into its ranks' memory, then it
binds. A rank that had passed it makes it move up, which is safe as long as it isn't bound.
"""

from __future__ import annotations

import math

from trainmaster_operator.planning.facts.change import Change, changed, normal
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.failure import drain
from trainmaster_operator.planning.lifecycle import elastic, saving, suspend

MARGIN_S = 0.5
"""How long a new stop_at takes to every rank's memory, beside the age of the reports it is chosen from."""


def advance(view: View) -> Change | None:
    """The next step towards a common stop, or the way back while it isn't bound."""
    status = view.status
    if suspend.is_wanted(view):
        phase, reason = JobPhase.SUSPENDING, "Suspending" if view.spec.suspend else "Restarting"
    elif elastic.next_size(view) is not None or (status.phase is JobPhase.RESIZING and status.stopBound):
        phase, reason = JobPhase.RESIZING, "Resizing"
    elif drain.leaving(view):
        phase, reason = _trains_on(view), "Draining"
    else:
        return None if status.stopBound else _called_off(view)
    if status.stopAt is None:
        stop_at = _highest(view) + margin(view)
        event = normal(reason, saving.stop_words(view, stop_at))
        return changed(status, event, phase=phase, stopAt=stop_at, stopBound=False)
    if phase is not status.phase:
        return changed(status, normal(reason, saving.stop_words(view, status.stopAt)), phase=phase)
    if status.stopBound:
        return None
    members = view.in_round()
    passed = max((a.stop_passed for a in members if a.stop_passed is not None), default=-1)
    if passed >= status.stopAt:
        # As far again as it was missed by: a rate that was underestimated is caught up with.
        return changed(status, stopAt=max(_highest(view), passed) + margin(view) + passed - status.stopAt)
    if len(members) == len(view.members) and all(a.stop_ack == status.stopAt for a in members):
        return changed(status, stopBound=True)
    return None


def margin(view: View) -> int:
    """Steps that ranks may take until all have heard."""
    return 2 + math.ceil(view.status.progress.stepsPerSecond * (view.interval_s + MARGIN_S))


def _called_off(view: View) -> Change | None:
    status, phase = view.status, _trains_on(view)
    if status.phase is JobPhase.SUSPENDING:
        return changed(status, normal("Resumed", "it goes on before it had stopped"), phase=phase, stopAt=None)
    if status.stopAt is None:
        return None
    if status.phase is JobPhase.RESIZING:
        return changed(status, normal("Running", "it keeps its size: it is as wished again"), phase=phase, stopAt=None)
    return changed(status, stopAt=None)


def _trains_on(view: View) -> JobPhase:
    """The phase without the stop that is under way."""
    status = view.status
    if status.phase is not JobPhase.SUSPENDING and (status.phase is not JobPhase.RESIZING or status.stopAt is None):
        return status.phase
    recovering = bool(status.recoveries) and status.recoveries[-1].totalSeconds is None
    return JobPhase.RECOVERING if recovering else JobPhase.STARTING  # until a step is seen: at once


def _highest(view: View) -> int:
    """The highest step that any rank stands at in this round."""
    members = view.in_round()
    steps = [rank.step for agent in members for rank in agent.ranks]
    return max([*steps, *(a.resumed_step or 0 for a in members)], default=0)
