"""What happened while no leader listened: rounds that agents opened by themselves, with the times that they report.

A returning leader accounts for each of them as if it had been there: the steps up to the failure, the time without
steps, the end of each recovery at its own first step, and the steps since then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, Pause, ProgressStatus, Recovery
from trainmaster_operator.planning.facts.round_times import RoundTimes, rounds_that_trained
from trainmaster_operator.planning.facts.script_step_count import repeats
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.lifecycle.goodput import PAUSES, Account, cause_of_repeats, since_first, since_known
from trainmaster_operator.planning.lifecycle.recovery_clock import wall_s

_TRAINS = (JobPhase.RUNNING, JobPhase.RESIZING, JobPhase.SUSPENDING)


def accounted(view: View, recoveries: Sequence[Recovery]) -> dict[str, Any]:
    """Return the fields of the status after all rounds that agents report are accounted for. `recoveries`: those of the
    status, followed by one for each round that was opened meanwhile.

    A round that completed no step is left out: its recovery lasts until a later round completes one.
    """
    status, known = view.status, list(recoveries)
    account, progress, fields = Account(status), status.progress, {}
    for number, times in sorted(rounds_that_trained(view).items()):
        if number == status.round and status.phase in _TRAINS and account.has_begun:
            _go_on(account, times, status, repeats=repeats(view, times.resume_told))
        else:
            under_way = [r for r in known if r.totalSeconds is None and r.round <= number]
            account.stand_still(times.first_step_at, [(r.cause, r.startedAt) for r in under_way])
            again = under_way[-1].cause if under_way else cause_of_repeats(status)
            since_first(account, times, progress, again, repeats=repeats(view, times.resume_told))
            known = [_closed(view, r, times) if r in under_way else r for r in known]
        progress = _reached(progress, times)
        fields = {**account.fields(), "progress": progress, **_pauses(status, times)}
    return {**fields, "recoveries": known}


def _closed(view: View, recovery: Recovery, times: RoundTimes) -> Recovery:
    """Return a recovery that ended with the first step of a round. Not every script reports where it resumed."""
    resumed = times.resumed_step if times.resume_told or not view.scripted else None
    return recovery.model_copy(
        update={
            "resumedStep": resumed,
            "tier": times.resumed_tier[:16],
            "lostSteps": None if resumed is None else max(0, recovery.step - resumed),
            "totalSeconds": wall_s(recovery, times.first_step_at),
        }
    )


def _go_on(account: Account, times: RoundTimes, status: JobState, *, repeats: bool) -> None:
    """Account for the round that was training when the last leader stopped. `repeats`: steps up to the highest one
    do not count as useful."""
    steps = times.step - status.progress.step
    if steps > 0:
        now = _pauses(status, times)["pauses"]
        paused = {name: since_known(status, now.get(name), name, times.round) for name in PAUSES}
        again = cause_of_repeats(status)
        fresh = times.step - max(status.progress.highestStep, status.progress.step) if repeats else steps
        account.train(times.last_sign_at, steps, fresh, paused, again)


def _pauses(status: JobState, times: RoundTimes) -> dict[str, Any]:
    """Return the fields with the accounted pauses of this round, from which the next pass counts on."""
    totals = {"save": times.saved_s, "eval": times.evaluated_s}
    known = {
        name: status.pauses.get(name, Pause()).model_copy(update={"total": round(total, 3)})
        for name, total in totals.items()
        if total or name in status.pauses
    }
    return {"pauses": {**status.pauses, **known}, "pausesRound": times.round}


def _reached(progress: ProgressStatus, times: RoundTimes) -> ProgressStatus:
    return progress.model_copy(
        update={
            "step": times.step,
            "highestStep": max(progress.highestStep, times.step),
            "updatedAt": rfc3339(times.last_sign_at),
        }
    )
