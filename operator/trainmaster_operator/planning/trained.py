"""When rounds trained, by the clocks of the agents: a leader that comes late hears of it minutes afterwards.

All ranks of a round step together. So the first step that any agent tells is the round's, and training went on for as
long as any rank showed life. What an agent says that can't be is left out.
"""

from __future__ import annotations

from trainmaster.contract.wire import Trained
from trainmaster_operator.planning.observation import AgentRecord
from trainmaster_operator.planning.once import once
from trainmaster_operator.planning.record import dataclass
from trainmaster_operator.planning.view import View

MOST_S = 1e9
"""No age and no duration is longer: agents may say anything."""


@dataclass(frozen=True)
class RoundTimes:
    """One round that came to a step. Times are seconds since 1970, on this leader's clock."""

    round: int
    first_step_at: float
    last_sign_at: float
    step: int
    resumed_step: int  # the step that it began after
    resumed_tier: str
    saved_s: float
    evaluated_s: float


@once
def rounds_that_trained(view: View) -> dict[int, RoundTimes]:
    """By number: the round of the status and later ones, as far as members tell that they came to a step."""
    found: dict[int, RoundTimes] = {}
    for slot in view.members:
        agent = view.agents[slot]
        for told in agent.trained if agent is not None else ():
            if agent is None or told.round < view.status.round or not _makes_sense(told):
                continue
            times = _times(view, agent, told)
            known = found.get(told.round)
            found[told.round] = times if known is None else _both(known, times)
    return found


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
    return 0 <= told.last_sign_s <= told.first_step_s <= MOST_S and all(
        0 <= seconds <= MOST_S for seconds in (told.saved_s, told.evaluated_s)
    )


def _times(view: View, agent: AgentRecord, told: Trained) -> RoundTimes:
    assert told.first_step_s is not None
    reported_at = view.now - agent.reported_s
    return RoundTimes(
        round=told.round,
        first_step_at=reported_at - told.first_step_s,
        last_sign_at=reported_at - told.last_sign_s,
        step=told.step,
        resumed_step=max(0, told.resumed_step or 0),
        resumed_tier=told.resumed_tier,
        saved_s=told.saved_s,
        evaluated_s=told.evaluated_s,
    )


def _both(one: RoundTimes, other: RoundTimes) -> RoundTimes:
    return RoundTimes(
        round=one.round,
        first_step_at=min(one.first_step_at, other.first_step_at),
        last_sign_at=max(one.last_sign_at, other.last_sign_at),
        step=max(one.step, other.step),
        resumed_step=max(one.resumed_step, other.resumed_step),
        resumed_tier=one.resumed_tier or other.resumed_tier,
        saved_s=max(one.saved_s, other.saved_s),
        evaluated_s=max(one.evaluated_s, other.evaluated_s),
    )
