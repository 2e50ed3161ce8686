"""What has happened to a job since it was created, and the words by which metrics tell it.

The status keeps only the last recoveries, so each pass adds what is new to totals that never fall. They are derived
from two statuses, whichever policy made the difference, and lie in the status themselves: a new leader tells the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, Recovery, Totals
from trainmaster_operator.planning.facts.times import seconds_of
from trainmaster_operator.planning.lifecycle.goodput import CHECKPOINT

OTHER = "Other"
RESIZED = "Resized"  # the cause of a recovery that answers no failure

FAILURES: Mapping[str, str] = {
    Cause.CRASH.value: "Crash",
    Cause.OUT_OF_MEMORY.value: "OutOfMemory",
    Cause.HANG.value: "Hang",
    Cause.STRAGGLER.value: "Straggler",
    Cause.HARDWARE_FAULT.value: "HardwareFault",
    Cause.NODE_LOST.value: "NodeLost",
    Cause.AGENT_LOST.value: "NodeLost",
    Cause.PREEMPTED.value: "Preempted",
    Cause.EVICTED.value: "Preempted",
    Cause.DIVERGED.value: "DataError",
    Cause.DATA_ERROR.value: "DataError",
    Cause.CONFIG_ERROR.value: "ConfigError",
    Cause.IMAGE_ERROR.value: "ConfigError",
    Cause.UNSCHEDULABLE.value: "ConfigError",
    Cause.REFUSED.value: "ConfigError",
}
"""The word by which metrics of a single job tell a cause. All other causes are `Other`: ten words at most."""

FAILURE_WORDS = (*dict.fromkeys(FAILURES.values()), OTHER)

PHASES: Mapping[str, str] = {
    "detect": "detect",
    "decide": "detect",
    "drain": "schedule",
    "schedule": "schedule",
    "start": "start",
    "fork": "start",
    "imports": "start",
    "rendezvous": "rendezvous",
    "build": "load",
    "load": "load",
    "first_step": "first_step",
}
"""The word by which metrics of a single job tell a phase of a recovery's clock: six words."""

PHASE_WORDS = tuple(dict.fromkeys(PHASES.values()))

LOSSES: Mapping[str, str] = {
    Cause.HARDWARE_FAULT.value: "hardware",
    Cause.NODE_LOST.value: "hardware",
    Cause.AGENT_LOST.value: "hardware",
    Cause.PREEMPTED.value: "preemption",
    Cause.EVICTED.value: "preemption",
    CHECKPOINT: "checkpoint",
    Cause.CHECKPOINT_FAILED.value: "checkpoint",
    Cause.STRAGGLER.value: "straggler",
    **dict.fromkeys(
        (
            *(Cause.CRASH.value, Cause.OUT_OF_MEMORY.value, Cause.HANG.value, Cause.DIVERGED.value),
            *(Cause.DATA_ERROR.value, Cause.CONFIG_ERROR.value, Cause.IMAGE_ERROR.value, Cause.UNSCHEDULABLE.value),
            *(Cause.REFUSED.value, Cause.STORE_LOST.value, Cause.FENCED.value, RESIZED),
        ),
        "restart",
    ),
}
"""The category of goodput's losses that a cause belongs to. All other causes, such as evaluations, are `other`."""

RESTART = "restart"
SET_ASIDE: Mapping[str, str] = {
    "detect": "detection",
    "decide": "detection",
    "schedule": "queue",
    "load": "checkpoint",
}
"""Phases of a recovery whose time is not told as `restart`: nobody knew yet, pods waited for a place, state was
read."""

CLOCKS_WITHIN_S = 10.0
"""Agents tell the clock of a recovery one after the other; this long after its first step all have."""

LOSS_WORDS = ("hardware", "preemption", "checkpoint", "straggler", "detection", "queue", RESTART, "other")


def count(old: JobState, new: JobState) -> JobState:
    """`new` with what has happened since `old` added to its totals; the same object if nothing has."""
    unsettled = any(not _is_settled(recovery, old) for recovery in old.recoveries)
    if new.recoveries is old.recoveries and new.lastFailure is old.lastFailure and not unsettled:
        return new
    known = {_identity(recovery): recovery for recovery in old.recoveries}
    if new.lastFailure is old.lastFailure and all(known.get(_identity(r)) is r for r in new.recoveries):
        return _retold(old, new)
    totals = (new.totals or Totals()).model_copy(deep=True)
    begun = [recovery for recovery in new.recoveries if _identity(recovery) not in known]
    for recovery in begun:
        if recovery.cause != RESIZED:
            _add(totals.failures, recovery.cause, 1)
    failure = new.lastFailure
    if not begun and failure is not None and failure != old.lastFailure:
        _add(totals.failures, failure.cause, 1)  # one that nothing was tried after
    for recovery in new.recoveries:
        _follow(totals, known.get(_identity(recovery)), recovery, _is_settled(recovery, new))
    if new.recoveries or old.recoveries:
        totals.told = _told(new.model_copy(update={"totals": totals}))
    if totals == (new.totals or Totals()):
        return new
    return new.model_copy(update={"totals": totals})


def _retold(old: JobState, new: JobState) -> JobState:
    """`new` where no failure and no recovery is new: at most, metrics will tell of it in another way."""
    if not (new.recoveries or old.recoveries):
        return new
    totals, told = new.totals or Totals(), _told(new)
    if told == totals.told:
        return new
    return new.model_copy(update={"totals": totals.model_copy(update={"told": told})})


def _told(status: JobState) -> dict[str, float]:
    """What metrics will tell of a status. The next pass that changes nothing else finds the same."""
    return {name: seconds for name, seconds in losses(status).items() if seconds}


def losses(status: JobState) -> dict[str, float]:
    """Seconds lost by category, each of LOSS_WORDS. No category ever falls: for Prometheus that would be a restart of
    the counter, and its whole value would count once more.

    Their sum is that of `status.lost`, without the time of recoveries whose clocks are not complete yet: until then
    nobody knows which category it belongs to. Clocks that overlap, or are told late, add some hundredths of a second.
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
        moved = min(aside[category], found[RESTART])  # the clocks of failures that overlap overlap too
        found[category] = found.get(category, 0.0) + moved
        found[RESTART] -= moved
    told = status.totals.told if status.totals is not None else {}
    # Rounded, since for Prometheus the last bit of a sum that falls is a fall too.
    return {category: round(max(seconds, told.get(category, 0.0)), 3) for category, seconds in found.items()}


def _is_settled(recovery: Recovery, status: JobState) -> bool:
    """Whether no agent has anything to add to the clock of a recovery."""
    if status.phase not in _COUNTING or recovery.overtaken or not status.accountedAt:
        return True
    if recovery.totalSeconds is None:
        return False
    ended_at = seconds_of(recovery.startedAt) + recovery.totalSeconds
    return seconds_of(status.accountedAt) >= ended_at + CLOCKS_WITHIN_S


def grouped(values: Mapping[str, float], words: Mapping[str, str], all_words: Iterable[str]) -> dict[str, float]:
    """Return the sum of `values` by the word of each name, each of `all_words`; what has none counts as the last."""
    found = dict.fromkeys(all_words, 0.0)
    last = next(reversed(found))
    for name, value in values.items():
        found[words.get(name, last)] += value
    return found


def _follow(totals: Totals, before: Recovery | None, now: Recovery, settled: bool) -> None:
    """A recovery has begun, has come further, or has ended. `settled`: its time has its category already."""
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
            continue  # an agent can make up names
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
    """What stays of a recovery when agents' own rounds change its number."""
    return recovery.startedAt, recovery.cause, recovery.pod
