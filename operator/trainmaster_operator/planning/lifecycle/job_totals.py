"""What has happened to a job since it was created, for its metrics.

The status keeps only the last recoveries, so each pass adds what is new to totals that never decrease. They are
computed from the old and the new status, whichever policy made the difference, and stored in the status, so that a new
leader reports the same numbers.
"""

from __future__ import annotations

from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, Recovery, Totals
from trainmaster_operator.planning.facts.timestamps import seconds_of
from trainmaster_operator.planning.lifecycle.metric_categories import (
    FAILURES,
    LOSS_WORDS,
    LOSSES,
    OTHER,
    PHASES,
    RESIZED,
    RESTART,
    SET_ASIDE,
)

CLOCKS_WITHIN_S = 10.0
"""Seconds after the first step of a recovery within which all agents have reported its clock; they report it one
after the other."""


def count(old: JobState, new: JobState) -> JobState:
    """Return `new` with what has happened since `old` added to its totals; the same object if nothing has."""
    unsettled = any(not _is_settled(recovery, old) for recovery in old.recoveries)
    if new.recoveries is old.recoveries and new.lastFailure is old.lastFailure and not unsettled:
        return new
    known = {_identity(recovery): recovery for recovery in old.recoveries}
    if new.lastFailure is old.lastFailure and all(known.get(_identity(r)) is r for r in new.recoveries):
        return _update_reported_losses(old, new)
    totals = (new.totals or Totals()).model_copy(deep=True)
    begun = [recovery for recovery in new.recoveries if _identity(recovery) not in known]
    for recovery in begun:
        if recovery.cause != RESIZED:
            _add(totals.failures, recovery.cause, 1)
    failure = new.lastFailure
    if not begun and failure is not None and failure != old.lastFailure:
        _add(totals.failures, failure.cause, 1)  # A failure that was not followed by a recovery.
    for recovery in new.recoveries:
        _follow(totals, known.get(_identity(recovery)), recovery, _is_settled(recovery, new))
    if new.recoveries or old.recoveries:
        totals.told = _reported_losses(new.model_copy(update={"totals": totals}))
    if totals == (new.totals or Totals()):
        return new
    return new.model_copy(update={"totals": totals})


def _update_reported_losses(old: JobState, new: JobState) -> JobState:
    """Return `new` with what metrics will report for it, where no failure and no recovery is new. Return the same
    object if metrics will report what they did."""
    if not (new.recoveries or old.recoveries):
        return new
    totals, told = new.totals or Totals(), _reported_losses(new)
    if told == totals.told:
        return new
    return new.model_copy(update={"totals": totals.model_copy(update={"told": told})})


def _reported_losses(status: JobState) -> dict[str, float]:
    """Return what metrics will report for a status. The next pass finds the same if it changes nothing else."""
    return {name: seconds for name, seconds in losses(status).items() if seconds}


def losses(status: JobState) -> dict[str, float]:
    """Return the lost seconds by category, one for each of LOSS_WORDS. No category ever decreases: Prometheus would
    take that for a restart of the counter and count its whole value again.

    Their sum is that of `status.lost`, without the time of recoveries whose clocks are not complete: the category of
    that time is not known yet. Clocks that overlap, or are reported late, add some hundredths of a second.
    """
    found = dict.fromkeys(LOSS_WORDS, 0.0)
    for cause, seconds in status.lost.items():
        found[LOSSES.get(cause, "other")] += seconds
    aside = dict(status.totals.setAside) if status.totals is not None else {}
    for recovery in status.recoveries:
        if LOSSES.get(recovery.cause) != RESTART or _is_settled(recovery, status):
            continue
        found[RESTART] -= min(found[RESTART], recovery.totalSeconds or 0.0)
        for phase, seconds in recovery.clock.items():
            category = SET_ASIDE.get(phase)
            if category in aside:
                aside[category] = max(0.0, aside[category] - seconds)
    for category in sorted(aside):
        moved = min(aside[category], found[RESTART])  # The clocks of failures that overlap also overlap.
        found[category] = found.get(category, 0.0) + moved
        found[RESTART] -= moved
    told = status.totals.told if status.totals is not None else {}
    # The sums are rounded, because Prometheus sees a decrease even in the last bit.
    return {category: round(max(seconds, told.get(category, 0.0)), 3) for category, seconds in found.items()}


def _is_settled(recovery: Recovery, status: JobState) -> bool:
    """Return whether no agent will add anything to the clock of a recovery."""
    if status.phase not in _COUNTING or recovery.overtaken or not status.accountedAt:
        return True
    if recovery.totalSeconds is None:
        return False
    ended_at = seconds_of(recovery.startedAt) + recovery.totalSeconds
    return seconds_of(status.accountedAt) >= ended_at + CLOCKS_WITHIN_S


def _follow(totals: Totals, before: Recovery | None, now: Recovery, settled: bool) -> None:
    """Add what is new of a recovery that has begun, has progressed or has ended. `settled`: the category of its time
    is already decided."""
    if now is before:
        return
    ended = now.totalSeconds is not None and not now.overtaken
    if ended and (before is None or before.totalSeconds is None) and now.cause != RESIZED:
        totals.recoveries += 1
        totals.lostSteps += now.lostSteps or 0
    told = before.clock if before is not None else {}
    for phase, seconds in now.clock.items():
        more = seconds - told.get(phase, 0.0)
        if more <= 0 or phase not in PHASES:
            continue  # The name comes from an agent, which may send any name.
        totals.phases[phase] = round(totals.phases.get(phase, 0.0) + more, 4)
        aside = SET_ASIDE.get(phase)
        if aside is not None and LOSSES.get(now.cause) == RESTART and not (settled and told):
            totals.setAside[aside] = round(totals.setAside.get(aside, 0.0) + more, 4)


def _add(counts: dict[str, int], cause: str, more: int) -> None:
    name = cause if cause in FAILURES or cause in _CAUSES else OTHER
    counts[name] = counts.get(name, 0) + more


_COUNTING = (JobPhase.PENDING, JobPhase.STARTING, JobPhase.RUNNING, JobPhase.RECOVERING, JobPhase.RESIZING)
_CAUSES = frozenset(cause.value for cause in Cause)


def _identity(recovery: Recovery) -> tuple[str, str, str]:
    """Return what identifies a recovery. Its number does not, because rounds that agents opened change it."""
    return recovery.startedAt, recovery.cause, recovery.pod
