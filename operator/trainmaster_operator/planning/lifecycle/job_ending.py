"""How a job ends: because its ranks are done, at its deadline, or for a reason that is no failure of its ranks.

The words of a failure that ends a job are in `failure.final_failure`; its pods are deleted by `finished_job_cleanup`.
"""

from __future__ import annotations

from trainmaster_operator.planning.facts.change import Change, changed, normal, warning
from trainmaster_operator.planning.facts.job_state import Failure, JobPhase
from trainmaster_operator.planning.facts.timestamps import rfc3339, since
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.lifecycle.suspend import given_up
from trainmaster_operator.planning.placement import scheduling_gates


def complete(view: View) -> Change | None:
    """Set the phase to Succeeded once every agent reports that all its ranks of this round ended with exit code 0."""
    agents = view.in_round()
    if not agents or len(agents) < len(view.members) or not all(a.done for a in agents):
        return None
    return changed(
        view.status,
        normal("Succeeded", _done(len(agents) * view.spec.workers.ranksPerPod)),
        phase=JobPhase.SUCCEEDED,
        completionTime=rfc3339(view.now),
        stopAt=None,
        stopBound=False,
        recoveries=given_up(view.status.recoveries, view.now),
    )


def fail_after_deadline(view: View) -> Change | None:
    """Fail the job when it has run longer than activeDeadlineSeconds."""
    due = overdue_s(view)
    if due is None or due > 0:
        return None
    return failed(
        view,
        "DeadlineExceeded",
        f"the job ran for longer than activeDeadlineSeconds ({view.spec.activeDeadlineSeconds:g})",
    )


def failed(view: View, cause: str, message: str) -> Change:
    """Return the change that ends the job as failed for a reason that is no failure of its ranks."""
    return changed(
        view.status,
        warning("Failed", f"{cause}: {message}"[:1024]),
        phase=JobPhase.FAILED,
        completionTime=rfc3339(view.now),
        lastFailure=Failure(
            cause=cause,
            message=message[:1024],
            step=view.highest_step(),
            round=view.status.round,
            time=rfc3339(view.now),
        ),
        stopAt=None,
        stopBound=False,
        recoveries=given_up(view.status.recoveries, view.now),
    )


def overdue_s(view: View) -> float | None:
    """Return the seconds until activeDeadlineSeconds is over; None if there is no deadline or a gate holds back
    pods."""
    limit = view.spec.activeDeadlineSeconds
    if limit is None or scheduling_gates.hold(view):
        return None
    return limit + scheduling_gates.held_s(view.status, view.now) - since(view.status.startTime, view.now)


def _done(ranks: int) -> str:
    return "its rank has finished" if ranks == 1 else f"all {ranks} ranks have finished"
