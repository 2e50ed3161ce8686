"""Agents that answer but do not start the round that is open."""

from __future__ import annotations

from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.job_state import Rung
from trainmaster_operator.planning.facts.timestamps import since
from trainmaster_operator.planning.facts.view import View


def measure_round_age_s(view: View) -> float:
    """Return for how many seconds agents can have known of the round.

    The leader that opened it may have died before it sent any directive, so the time before this leader does not count.
    """
    return min(since(view.status.roundOpenedAt, view.now), view.observed.leading_s)


def find_late_agent(view: View, limit_s: float) -> Fault | None:
    """Return the fault of an agent that reports but has not started the round within the limit, if there is one."""
    waited = measure_round_age_s(view)
    if waited < limit_s:
        return None
    for slot in view.members:
        agent = view.agents[slot]
        if agent is not None and agent.round < view.status.round and agent.silent_s < view.lost_after_s:
            pod = view.pods[slot]
            return Fault(
                cause=Cause.HANG,
                message=f"the agent of slot {slot} has not started round {view.status.round} after {waited:.1f} s",
                slots=(slot,),
                floor=Rung.POD,
                pod=pod.name if pod else "",
                node=pod.node if pod else "",
                step=view.highest_step(),
                age_s=waited,
                clock={"detect": waited, "decide": 0.0},
            )
    return None
