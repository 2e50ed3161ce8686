"""What people read when ranks are asked to save and stop, for a suspend, a resize or a drain, and when they have."""

from __future__ import annotations

from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.lifecycle.checkpoint_conditions import saves_into_pods


def stop_words(view: View, step: int) -> str:
    """Return what ranks will do that are asked to stop after a step. The step may be higher than the job's last
    step."""
    step = min(step, view.status.progress.totalSteps or step)
    saves = "stop" if view.spec.checkpoint.folder is None else "save and stop"
    if view.scripted:
        where = f"after step {step} at the earliest" if view.highest_step() else "after their next steps"
        return f"ranks that use run.steps() {saves} {where}, others get SIGTERM"
    lost = "; nothing is saved, since the job has no spec.checkpoint" if view.spec.checkpoint.folder is None else ""
    last = step == view.status.progress.totalSteps
    return f"all ranks {saves} after step {step}{'' if last else ' at the earliest'}{lost}{_lost_with_pods(view)}"


def stopped_words(view: View) -> str:
    """Return what ranks did that have stopped because they were asked to."""
    last = view.status.progress.totalSteps or view.status.stopAt
    step = "" if view.status.stopAt is None or last is None else f" step {min(view.status.stopAt, last)}"
    if not any(agent.nothing_saved for agent in view.in_round()):
        return f"every rank saved{step} and stopped{_lost_with_pods(view)}"
    if view.scripted:
        return "every rank stopped; only the script knows what it saved"
    return f"every rank stopped{step and ' after' + step}, and nothing was saved: the job has no spec.checkpoint"


def _lost_with_pods(view: View) -> str:
    return (
        "; the saved state is lost together with the pods: see the condition Unprotected"
        if saves_into_pods(view)
        else ""
    )
