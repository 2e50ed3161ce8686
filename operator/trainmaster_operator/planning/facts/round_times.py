"""When rounds trained, by the clocks of the agents: a leader that comes late hears of it minutes afterwards.

All ranks of a round step together. So the first step that any agent tells is the round's, and training went on for as
long as any rank showed life. What an agent says that can't be is left out.
"""

from __future__ import annotations

from trainmaster.contract.wire import Trained
from trainmaster_operator.planning.facts.frozen_record import dataclass
from trainmaster_operator.planning.facts.once import once
from trainmaster_operator.planning.facts.view import View

MOST_S = 1e9
"""No age and no duration is longer: agents may say anything."""


@dataclass(frozen=True)
class RoundTimes:
    """One round that came to a step. Times are seconds since 1970, on this leader's clock."""

    round: int
    first_step_at: float
    last_sign_at: float
    step: int
    resumed_step: int  # the step that it began after; 0 as well where nobody tells
    resume_told: bool
    resumed_tier: str
    saved_s: float
    evaluated_s: float


@once
def rounds_that_trained(view: View) -> dict[int, RoundTimes]:
    """By number: the round of the status and later ones, as far as members tell that they came to a step."""
    told: dict[int, list[tuple[float, Trained]]] = {}  # and when it was reported
    for slot in view.members:
        agent = view.agents[slot]
        if agent is None:
            continue
        for trained in agent.trained:
            if trained.round >= view.status.round and _makes_sense(trained):
                told.setdefault(trained.round, []).append((view.now - agent.reported_s, trained))
    return {number: _of_all(number, each) for number, each in told.items()}


def first_step_at(view: View) -> float:
    """When the status' round came to its first step: now, if no agent tells."""
    times = rounds_that_trained(view).get(view.status.round)
    return view.now if times is None else times.first_step_at


def last_sign_at(view: View) -> float:
    """When ranks of the status' round last showed life: now, if no agent tells."""
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
