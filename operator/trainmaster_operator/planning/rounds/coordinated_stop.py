"""A common stop: all ranks save the same step and end, without a collective.

`stop_at` is chosen above the highest step. When every agent has acknowledged that its ranks can read it, it becomes
binding. If a rank has already passed it, it is raised, which is safe as long as it is not binding.
"""

from __future__ import annotations

import math

from trainmaster_operator.planning.facts.change import Change, changed, normal
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.failure import drain
from trainmaster_operator.planning.lifecycle import elastic_resize, stop_messages, suspend

MARGIN_S = 0.5
"""Seconds until a new stop_at is in the memory of every rank, in addition to the age of the reports from which it is
chosen."""


def advance(view: View) -> Change | None:
    """Return the next change towards a common stop, or cancel the stop while it is not binding. Return None if
    nothing changes."""
    status = view.status
    if suspend.is_wanted(view):
        phase, reason = JobPhase.SUSPENDING, "Suspending" if view.spec.suspend else "Restarting"
    elif elastic_resize.next_size(view) is not None or (status.phase is JobPhase.RESIZING and status.stopBound):
        phase, reason = JobPhase.RESIZING, "Resizing"
    elif drain.leaving(view):
        phase, reason = _trains_on(view), "Draining"
    else:
        return None if status.stopBound else _called_off(view)
    if status.stopAt is None:
        stop_at = _highest(view) + margin(view)
        event = normal(reason, stop_messages.stop_words(view, stop_at))
        return changed(status, event, phase=phase, stopAt=stop_at, stopBound=False)
    if phase is not status.phase:
        return changed(status, normal(reason, stop_messages.stop_words(view, status.stopAt)), phase=phase)
    if status.stopBound:
        return None
    members = view.in_round()
    passed = max((a.stop_passed for a in members if a.stop_passed is not None), default=-1)
    if passed >= status.stopAt:
        # Add the number of steps by which it was missed, so that an underestimated rate is made up for.
        return changed(status, stopAt=max(_highest(view), passed) + margin(view) + passed - status.stopAt)
    if len(members) == len(view.members) and all(a.stop_ack == status.stopAt for a in members):
        return changed(status, stopBound=True)
    return None


def margin(view: View) -> int:
    """Return the number of steps that ranks may complete until all of them know the stop."""
    return 2 + math.ceil(view.status.progress.stepsPerSecond * (view.interval_s + MARGIN_S))


def _called_off(view: View) -> Change | None:
    status, phase = view.status, _trains_on(view)
    if status.phase is JobPhase.SUSPENDING:
        return changed(
            status,
            normal("Resumed", "the stop was cancelled before the ranks had stopped, so the job continues"),
            phase=phase,
            stopAt=None,
        )
    if status.stopAt is None:
        return None
    if status.phase is JobPhase.RESIZING:
        words = "the job keeps its size, because the spec asks for this size again"
        return changed(status, normal("Running", words), phase=phase, stopAt=None)
    return changed(status, stopAt=None)


def _trains_on(view: View) -> JobPhase:
    """Return the phase that the job has without the requested stop."""
    status = view.status
    if status.phase is not JobPhase.SUSPENDING and (status.phase is not JobPhase.RESIZING or status.stopAt is None):
        return status.phase
    recovering = bool(status.recoveries) and status.recoveries[-1].totalSeconds is None
    return JobPhase.RECOVERING if recovering else JobPhase.STARTING  # It lasts only until a step is reported.


def _highest(view: View) -> int:
    """Return the highest step of any rank in this round."""
    members = view.in_round()
    steps = [rank.step for agent in members for rank in agent.ranks]
    return max([*steps, *(a.resumed_step or 0 for a in members)], default=0)
