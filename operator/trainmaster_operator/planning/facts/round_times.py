"""When rounds trained, by the clocks of the agents. A leader that starts late learns of it minutes afterwards.

All ranks of a round step together. So the first step that any agent reports is the first step of the round, and
training lasted as long as any rank showed signs of life. Impossible values from an agent are ignored.
"""

from __future__ import annotations

from trainmaster.contract.wire import Trained
from trainmaster_operator.planning.facts.computed_once import once
from trainmaster_operator.planning.facts.frozen_record import dataclass
from trainmaster_operator.planning.facts.view import View

MOST_S = 1e9
"""Longest age or duration in seconds that an agent may report; longer ones are ignored."""


@dataclass(frozen=True)
class RoundTimes:
    """The times of one round that completed a step, in seconds since 1970 on this leader's clock."""

    round: int
    first_step_at: float
    last_sign_at: float
    step: int
    resumed_step: int  # The step after which the round began; 0 also if no agent reports it.
    resume_told: bool
    resumed_tier: str
    saved_s: float
    evaluated_s: float


@once
def rounds_that_trained(view: View) -> dict[int, RoundTimes]:
    """Return the times of the status' round and of later ones by number, for rounds of which members report a step."""
    # By round: pairs of the time of the report (seconds since 1970) and what was reported.
    told: dict[int, list[tuple[float, Trained]]] = {}
    for slot in view.members:
        agent = view.agents[slot]
        if agent is None:
            continue
        for trained in agent.trained:
            if trained.round >= view.status.round and _makes_sense(trained):
                told.setdefault(trained.round, []).append((view.now - agent.reported_s, trained))
    return {number: _of_all(number, each) for number, each in told.items()}


def first_step_at(view: View) -> float:
    """Return the time of the first step of the status' round in seconds since 1970; now, if no agent reports it."""
    times = rounds_that_trained(view).get(view.status.round)
    return view.now if times is None else times.first_step_at


def last_sign_at(view: View) -> float:
    """Return the time at which ranks of the status' round last showed signs of life, in seconds since 1970; now, if
    no agent reports it."""
    times = rounds_that_trained(view).get(view.status.round)
    return view.now if times is None else times.last_sign_at


def _makes_sense(told: Trained) -> bool:
    if told.first_step_s is None or told.step <= (told.resumed_step or 0):
        return False
    ages = 0 <= told.last_sign_s <= told.first_step_s <= MOST_S
    return ages and 0 <= told.saved_s <= MOST_S and 0 <= told.evaluated_s <= MOST_S


def _of_all(number: int, told: list[tuple[float, Trained]]) -> RoundTimes:
    return RoundTimes(
        round=number,
        first_step_at=min(at - trained.first_step_s for at, trained in told if trained.first_step_s is not None),
        last_sign_at=max(at - trained.last_sign_s for at, trained in told),
        step=max(trained.step for _, trained in told),
        resumed_step=max(0, *(trained.resumed_step or 0 for _, trained in told)),
        resume_told=any(trained.resumed_step is not None for _, trained in told),
        resumed_tier=next((trained.resumed_tier for _, trained in told if trained.resumed_tier), ""),
        saved_s=max(trained.saved_s for _, trained in told),
        evaluated_s=max(trained.evaluated_s for _, trained in told),
    )
