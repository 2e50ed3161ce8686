"""A job that completes no step although it trains: for how long, and what that does to the numbers that are shown.

The status of a job that stands still doesn't change, so its rate and its goodput would stay those of its last step.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster_operator.cli.display.number_words import seconds
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.timestamps import since
from trainmaster_operator.planning.lifecycle.goodput import useful_share

TIMES = 10
"""How many times as long as usual a step must take to be reported."""

LEAST_S = 10.0
"""Shortest time without a step that is reported of a run on this machine, in seconds."""

LEAST_ON_A_CLUSTER_S = 60.0
"""The same of a job on a cluster: its clock may differ, and an operator with many jobs writes progress late."""


LEAST_SEEN_S = 3.0
"""Shortest age of the last step that `trainmaster status` shows of a run on this machine, in seconds. The status of a
run that steps as usual is younger."""


@dataclass(frozen=True)
class Standstill:
    """A job without a step for `lasts_s` seconds. `usual_s`: seconds that its steps take."""

    lasts_s: float
    usual_s: float
    goodput: str

    @property
    def words(self) -> str:
        """What a person reads."""
        return f"no step for {seconds(self.lasts_s)} (usually {seconds(self.usual_s)})"


def last_step(status: JobState, now: float) -> str:
    """Return how long ago the last step of a run on this machine was, as words; "" if that is as usual or not known."""
    usual_s = _usual_s(status)
    if status.phase is not JobPhase.RUNNING or not status.progress.updatedAt or not usual_s:
        return ""
    ago_s = since(status.progress.updatedAt, now)
    return f"last step {seconds(ago_s)} ago" if ago_s >= max(LEAST_SEEN_S, 2 * usual_s) else ""


def find(status: JobState, now: float, least_s: float) -> Standstill | None:
    """Return the standstill of a job that trains; None if its last step is recent or its usual time isn't known.
    `now`: seconds since 1970. `least_s`: the shortest time that counts."""
    progress = status.progress
    usual_s = _usual_s(status)
    if status.phase is not JobPhase.RUNNING or not progress.updatedAt or not usual_s:
        return None
    lasts_s = since(progress.updatedAt, now)
    if lasts_s < max(least_s, TIMES * usual_s):
        return None
    useful = useful_share(status.usefulSeconds, {**status.lost, "": since(status.accountedAt, now)})
    return Standstill(lasts_s, usual_s, f"{useful:.2f}" if useful is not None and status.accountedAt else "")


def _usual_s(status: JobState) -> float:
    """Return the seconds that a step usually takes; 0 if that isn't known."""
    pause, rate = status.pauses.get("step"), status.progress.stepsPerSecond
    if pause is not None and pause.typical > 0:
        return pause.typical
    return 1 / rate if rate > 0 else 0.0
