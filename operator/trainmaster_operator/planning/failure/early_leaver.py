"""Ranks that ended with exit code 0 while others of their round continued. That the others lost their connection is
then only a consequence."""

from __future__ import annotations

from dataclasses import replace

from trainmaster.contract.wire import Cause, RankReport, RankState, Recurrence
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.observation import AgentRecord
from trainmaster_operator.planning.facts.view import View


def behind(view: View, lost: AgentRecord) -> Fault | None:
    """Return the fault of the rank that left, as the cause of what the ranks of agent `lost` report. Return None if
    no rank left."""
    found = _first(view)
    if found is None:
        return None
    agent, rank, words = found
    pod = view.pods[agent.slot]
    return Fault(
        cause=Cause.CRASH,
        message=words,
        slots=(agent.slot,),
        rank=rank.rank,
        pod=pod.name if pod else "",
        node=pod.node if pod else "",
        exit_code=0,
        recurs=Recurrence.LIKELY,  # Only the program itself ends in this way.
        step=rank.step,
        age_s=lost.verdict_age_s,
        clock={"detect": lost.verdict_age_s, "decide": 0.0},
    )


def explained(view: View, hang: Fault | None) -> Fault | None:
    """Return the fault of a hang with the rank that left added to its message, because the hanging ranks may wait
    for that rank."""
    found = _first(view) if hang is not None else None
    return hang if hang is None or found is None else replace(hang, message=f"{hang.message}; {found[2]}")


def _first(view: View) -> tuple[AgentRecord, RankReport, str] | None:
    """Return the rank that left at the lowest step, with its agent and a sentence about it. Return None if no rank
    left."""
    ranks = [(agent, rank) for agent in view.in_round() for rank in agent.ranks]
    gone = [(a, r) for a, r in ranks if r.state is RankState.EXITED and r.exit_code == 0]
    others = len(view.members) * view.spec.workers.ranksPerPod - len(gone)
    if not gone or others < 1:
        return None
    agent, rank = min(gone, key=lambda each: (each[1].step, each[1].rank))
    who = f"rank {rank.rank}" if len(gone) == 1 else f"rank {rank.rank} (and {len(gone) - 1} more)"
    where = f" after step {rank.step}" if rank.step else " before its first step" if view.highest_step() else ""
    rest = "1 other rank was" if others == 1 else f"{others} other ranks were"
    return agent, rank, f"{who} ended with exit code 0{where}, while {rest} still training"
