"""What people see: steps, loss, rates, goodput, and the clock of each recovery. All of it comes from reports of
agents."""

from __future__ import annotations

import math

from trainmaster.contract.wire import RankReport
from trainmaster_operator.planning.facts import script_step_count
from trainmaster_operator.planning.facts.change import Change, changed, normal
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.job_state import CheckpointStatus, JobPhase, JobState, ProgressStatus, Recovery
from trainmaster_operator.planning.facts.observation import AgentRecord
from trainmaster_operator.planning.facts.round_times import first_step_at
from trainmaster_operator.planning.facts.timestamps import rfc3339, since
from trainmaster_operator.planning.facts.view import View, stepped_to
from trainmaster_operator.planning.lifecycle import goodput, recovery_clock
from trainmaster_operator.planning.liveness import hang_thresholds, straggler

SMOOTHING_S = 10.0
"""Time constant of the smoothed rates, in seconds."""


def record_first_step(view: View) -> Change | None:
    """Set phase Running and close every open recovery once a rank has completed a step of this round.

    One rank is enough: ranks step together.
    """
    status = view.status
    resizes = status.phase is JobPhase.RESIZING and status.stopAt is None
    if not (resizes or status.phase in (JobPhase.STARTING, JobPhase.RECOVERING)) or not _steps(view):
        return None
    resumed = max((a.resumed_step for a in view.in_round() if a.resumed_step is not None), default=None)
    tier = next((a.resumed_tier for a in view.in_round() if a.resumed_tier), "")
    recoveries = [_closed(view, r, resumed, tier) if r.totalSeconds is None else r for r in status.recoveries]
    event = normal("Running", f"round {status.round} trains")
    was_open = [new for old, new in zip(status.recoveries, recoveries, strict=True) if old.totalSeconds is None]
    if was_open:
        last = was_open[-1]
        down = was_open[0].totalSeconds or 0.0  # From the first of several failures that overlap.
        event = normal(
            "Recovered",
            f"from {last.cause} in {down:.2f} s, {_resumed(last)}",
        )
    return changed(
        status,
        event,
        phase=JobPhase.RUNNING,
        recoveries=recoveries,
        **goodput.at_first_step(view),
    )


def update(view: View, status: JobState) -> JobState:
    """Return `status` with what the reports say; the same object if they say nothing new."""
    fields: dict[str, object] = {}
    progress = _progress(view)
    if progress is not view.status.progress:
        fields["progress"] = progress
        if progress.step != view.status.progress.step or view.status.pausesRound != view.status.round:
            # A pause is accounted with the step that follows it, so it must not be known before that step is.
            fields |= {"pauses": hang_thresholds.learned(view), "pausesRound": view.status.round}
        if _trains(view):
            fields |= goodput.stepped(view, status.model_copy(update=fields), view.status.progress, progress)
    joined = [agent is not None and agent.joined for agent in view.agents]
    ready, spares = (sum(map(joined.__getitem__, slots)) for slots in (view.members, view.parked))
    if (ready, spares) != (status.workers.ready, status.workers.spares):
        fields["workers"] = status.workers.model_copy(update={"ready": ready, "spares": spares})
    seen, kept = view.observed.checkpoint, status.checkpoint
    if seen is not None and (kept is None or (seen.round, seen.step) > (kept.round, kept.step)):
        fields["checkpoint"] = CheckpointStatus(
            step=seen.step, round=seen.round, tier=seen.tier, time=rfc3339(view.now)
        )
    if status.suspicion is not None and status.suspicion.round != status.round:
        fields["suspicion"] = None
    slow = straggler.update(view, status)
    if slow is not status.straggler:
        fields["straggler"] = slow
    recoveries = recovery_clock.update(view, status)
    if recoveries is not status.recoveries:
        fields["recoveries"] = recoveries
    if status.observedGeneration != view.observed.generation:
        fields["observedGeneration"] = view.observed.generation
    return status.model_copy(update=fields) if fields else status


def _resumed(recovery: Recovery) -> str:
    """Return where the ranks continued, as far as they report it; a script need not."""
    if recovery.resumedStep is None:
        return "the script does not report the step from which it continues"
    how = "resumed at" if recovery.resumedStep else "began again at"
    return f"{how} step {recovery.resumedStep}, {counted(recovery.lostSteps or 0, 'step')} lost"


def _trains(view: View) -> bool:
    """Return whether the job completes steps in one round."""
    return view.status.phase in (JobPhase.RUNNING, JobPhase.RESIZING, JobPhase.SUSPENDING)


def _steps(view: View) -> list[tuple[AgentRecord, RankReport]]:
    """Return the ranks that have completed a step of this round, with their agents."""
    return [(a, r) for a in view.in_round() for r in a.ranks if stepped_to(view, a, r) > 0]


def _progress(view: View) -> ProgressStatus:
    old = view.status.progress
    ranks = _steps(view)
    if not ranks:
        return old
    step = max(rank.step for _, rank in ranks)
    training = view.spec.training
    total = training.steps if training else max(rank.total_steps for _, rank in ranks)
    loss = next((_text(r.loss) for _, r in ranks if r.loss is not None), old.loss)
    saved = script_step_count.last_save(view)
    elapsed = since(old.updatedAt, view.now)
    # A new round may be seen first at the very step that was the last one before.
    of_this_round = elapsed <= since(view.status.roundOpenedAt, view.now)
    if of_this_round and (step, total, loss, saved) == (old.step, old.totalSteps, old.loss, old.lastSave):
        return old
    rate = old.stepsPerSecond
    if step > old.step > 0 and _trains(view) and elapsed > 0:
        new = (step - old.step) / elapsed
        weight = 1 - math.exp(-elapsed / SMOOTHING_S) if rate > 0 else 1.0
        rate += weight * (new - rate)
    return ProgressStatus(
        step=step,
        totalSteps=total,
        highestStep=max(old.highestStep, step),
        lastSave=saved,
        memoryStep=min((agent.memory_step for agent in view.in_round()), default=0),
        loss=loss,
        stepsPerSecond=round(rate, 6),
        tokensPerSecond=round(rate * _tokens_per_step(ranks), 1),
        etaSeconds=round((total - step) / rate, 1) if rate > 0 and total >= step else None,
        updatedAt=rfc3339(view.now),
    )


def _tokens_per_step(ranks: list[tuple[AgentRecord, RankReport]]) -> float:
    """Return the number of tokens per step of all ranks. Each rank counts the tokens that it consumed since its
    process started."""
    return sum(r.tokens / (r.step - (a.resumed_step or 0)) for a, r in ranks if r.step > (a.resumed_step or 0))


def _text(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.6g}"


def _closed(view: View, recovery: Recovery, resumed: int | None, tier: str) -> Recovery:
    return recovery.model_copy(
        update={
            "resumedStep": resumed,
            "tier": tier[:16],
            "lostSteps": None if resumed is None else max(0, recovery.step - resumed),
            "totalSeconds": recovery_clock.wall_s(recovery, first_step_at(view)),
        }
    )
