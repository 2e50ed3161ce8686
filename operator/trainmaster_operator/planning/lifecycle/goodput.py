"""Goodput: the share of time spent on useful steps, of the time since the first step in which the job was not
suspended, and the causes to which the rest was lost.

A step counts once. Steps that are done again after a failure are lost to that failure, and so is the time in which
nothing stepped. If it is unknown whether steps are done again, they count as useful (`step_count.repeats`). Agents
report when the steps were done, so the account is right however late a leader hears of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster_operator.planning.facts import script_step_count
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, Pause, ProgressStatus
from trainmaster_operator.planning.facts.round_times import RoundTimes, first_step_at, last_sign_at, rounds_that_trained
from trainmaster_operator.planning.facts.timestamps import rfc3339, seconds_of, since
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.liveness import hang_thresholds

CHECKPOINT = "Checkpoint"  # Saving, as far as training stood still for it.
EVALUATION = "Evaluation"
RESUME = "Resume"  # From the start of a run after a stop to its first step, and the steps that it does again.
OTHER = "Other"

PAUSES = {"save": CHECKPOINT, "eval": EVALUATION}
"""Phases between steps, with the cause under which their time is lost."""


class Account:
    """The account of a job, continued from its status. Times are seconds since 1970."""

    def __init__(self, status: JobState) -> None:
        self._counts = bool(status.firstStepAt)
        self._without_failure = RESUME if is_resumed(status) else OTHER
        # As it is written in the status: a time that is parsed and written again loses digits.
        self._first = status.firstStepAt
        # The time of a suspend is not counted: after a resume the account continues at the time when the job was
        # started again.
        self._at = seconds_of(max(status.accountedAt, status.startTime)) if self._counts else 0.0
        self._useful_s = status.usefulSeconds
        self._lost = dict(status.lost)
        self._goodput = status.goodput
        self.has_begun = has_begun(status)

    def stand_still(self, until: float, failures: Sequence[tuple[str, str]]) -> None:
        """Account for the time up to `until` in which no step was completed: each failure loses the time up to the
        next one. `failures`: the cause and the time of each that no step has followed. At the first step of the job
        the account begins."""
        if not self._counts:
            self._counts, self._first, self._at = True, rfc3339(until), until
            return
        until = max(until, self._at)
        ends = [until - min(since(at, until), until - self._at) for _, at in failures[1:]]
        causes = [cause for cause, _ in failures] or [self._without_failure]
        for cause, end in zip(causes, [*ends, until], strict=True):
            # A failure may have begun before the one that was found first: an agent has been silent since then.
            self._lose(cause, max(0.0, end - self._at))
            self._at = max(self._at, end)
        self._divide()

    def train(self, until: float, steps: int, fresh: int, paused: dict[str, float], again: str) -> None:
        """Account for `steps` steps up to `until`, `fresh` of which were done for the first time; the time of the
        others is lost to cause `again`.

        `paused`: by phase, the seconds of that time in which ranks saved or evaluated.
        """
        elapsed = max(0.0, until - self._at)
        all_paused = sum(paused.values())
        stepping = max(0.0, elapsed - all_paused)
        share = min(1.0, max(0, fresh) / steps) if steps > 0 else 1.0
        self._useful_s = round(self._useful_s + share * stepping, 3)
        for name, seconds in paused.items():
            # Some ranks may evaluate while others save, so that both together take longer than the time that passed.
            self._lose(PAUSES[name], seconds * min(1.0, elapsed / all_paused) if all_paused else 0.0)
        self._lose(again, (1 - share) * stepping)
        self._at += elapsed
        self._divide()

    def fields(self) -> dict[str, Any]:
        """Return the account as fields of the status."""
        return {
            "firstStepAt": self._first,
            "accountedAt": rfc3339(self._at),
            "usefulSeconds": self._useful_s,
            "lost": self._lost,
            "goodput": self._goodput,
        }

    def _divide(self) -> None:
        useful = useful_share(self._useful_s, self._lost)
        self._goodput = f"{useful:.2f}" if useful is not None else ""

    def _lose(self, cause: str, seconds: float) -> None:
        if seconds >= 0.0005:
            self._lost[cause] = round(self._lost.get(cause, 0.0) + seconds, 3)


def useful_share(useful_s: float, lost: Mapping[str, float]) -> float | None:
    """Return the share of the accounted time that was useful; None if no time is accounted yet."""
    accounted_s = useful_s + sum(lost.values())
    return useful_s / accounted_s if accounted_s > 0 else None


def has_begun(status: JobState) -> bool:
    """Return whether a first step is accounted since the job was started or resumed. The job may be asked to stop
    before that."""
    return bool(status.accountedAt) and status.accountedAt >= status.startTime


def is_resumed(status: JobState) -> bool:
    """Return whether the job continues after it was suspended, or after its run on one machine was stopped."""
    return bool(status.firstStepAt) and status.firstStepAt < status.startTime


def at_first_step(view: View) -> dict[str, object]:
    """Return the fields of the status when a round has completed its first step: the time before it was not useful.
    Steps that the round has done since then, while no leader listened, are accounted too."""
    status = view.status
    account = Account(status)
    account.stand_still(first_step_at(view), _without_a_step_since(status))
    times = rounds_that_trained(view).get(status.round)
    if times is None or times.step <= times.resumed_step + 1:
        return account.fields()
    since_first(
        account,
        times,
        status.progress,
        cause_of_repeats(status),
        repeats=script_step_count.repeats(view, times.resume_told),
    )
    return {**account.fields(), "pauses": hang_thresholds.learned(view), "pausesRound": status.round}


def at_failure(view: View, status: JobState) -> JobState:
    """Return `status` with the time accounted that the failure has lost with which the job ends; the same object if the
    job did not fail, or had no step. `status`: the account has all steps that are known."""
    failure = status.lastFailure
    if status.phase is not JobPhase.FAILED or failure is None or not status.firstStepAt:
        return status
    account = Account(status)
    account.stand_still(view.now, [*_without_a_step_since(view.status), (failure.cause, failure.time)])
    return status.model_copy(update=account.fields())


def _without_a_step_since(status: JobState) -> list[tuple[str, str]]:
    """Return the cause and the time of each failure that no step has followed."""
    return [(r.cause, r.startedAt) for r in status.recoveries if r.totalSeconds is None]


def since_first(account: Account, times: RoundTimes, progress: ProgressStatus, again: str, *, repeats: bool) -> None:
    """Account for what a round has done after its first step. `repeats`: steps up to the highest one do not count as
    useful."""
    steps = times.step - times.resumed_step - 1
    fresh = times.step - max(progress.highestStep, times.resumed_step + 1) if repeats else steps
    account.train(times.last_sign_at, steps, fresh, {"save": times.saved_s, "eval": times.evaluated_s}, again)


def stepped(view: View, status: JobState, old: ProgressStatus, new: ProgressStatus) -> dict[str, object]:
    """Return the fields after steps within one round; {} if there were none. `status`: has the pauses of this pass."""
    steps = new.step - old.step
    if steps <= 0 or not has_begun(status):
        return {}
    account = Account(status)
    paused = {name: _paused(view, status, name) for name in PAUSES}
    told = any(agent.resumed_step is not None for agent in view.in_round())
    fresh = new.step - max(old.highestStep, old.step) if script_step_count.repeats(view, told) else steps
    account.train(last_sign_at(view), steps, fresh, paused, cause_of_repeats(view.status))
    return account.fields()


def cause_of_repeats(status: JobState) -> str:
    """Return the cause for which steps are done again: the last failure since the job was started, else the resume."""
    if status.recoveries and status.recoveries[-1].startedAt >= status.startTime:
        return status.recoveries[-1].cause
    return RESUME if is_resumed(status) else OTHER


def _paused(view: View, status: JobState, name: str) -> float:
    """Return the seconds that ranks have spent in this phase since the status with which this pass began."""
    return since_known(view.status, status.pauses.get(name), name, status.pausesRound)


def since_known(status: JobState, now: Pause | None, name: str, round: int) -> float:
    """Return the seconds of `now`, the pauses of this phase in that round, that `status` does not contain yet."""
    if now is None:
        return 0.0
    before = status.pauses.get(name)
    known = before.total if before is not None and status.pausesRound == round else 0.0
    return max(0.0, now.total - known)
