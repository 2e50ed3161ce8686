"""A plain limit on the silence of ranks. Learned limits come later."""

from __future__ import annotations

from trainmaster.contract.wire import Cause, RankReport, RankState
from trainmaster_operator.api.status import Rung
from trainmaster_operator.planning.fault import Fault
from trainmaster_operator.planning.observation import AgentRecord
from trainmaster_operator.planning.times import since
from trainmaster_operator.planning.view import View

WATCHED = ("", "START", "RENDEZVOUS", "BUILD", "LOAD", "STEP", "SAVE")
"""Phases under the limit, all under the same. Evaluation and tear-down may be silent; a stopped rank never may."""


def hang(view: View) -> Fault | None:
    """A rank of this round said nothing for the limit, by its agent's word; or an agent never started the round.

    Everything starts afresh with each round: only reports of the current one count.
    """
    limit = view.spec.recovery.hang.limitSeconds
    if limit is None or not view.round_is_open:
        return None
    reports = _watched(view)
    silent = [(agent, rank) for agent, rank in reports if rank.silent_s >= limit]
    if silent:
        agent, rank = min(reports, key=_blame)
        return _fault(view, agent, rank)
    return _never_started(view, limit)


def hang_due_s(view: View) -> float | None:
    """When the limit may be reached. At that time the agent's word is asked for, hence at least one report later."""
    limit = view.spec.recovery.hang.limitSeconds
    if limit is None or not view.round_is_open:
        return None
    waits = [max(view.interval_s, limit - rank.silent_s - agent.silent_s) for agent, rank in _watched(view)]
    late = limit - since(view.status.roundOpenedAt, view.now)
    if late > 0 and len(view.in_round()) < view.slots:
        waits.append(late)
    return min(waits, default=None)


def _watched(view: View) -> list[tuple[AgentRecord, RankReport]]:
    """Ranks whose silence means something: their agent speaks, and they haven't ended."""
    fresh = max(2.0, 4 * view.interval_s)
    return [
        (agent, rank)
        for agent in view.in_round()
        if agent.silent_s < fresh
        for rank in agent.ranks
        if ((rank.state is RankState.RUNNING or rank.state is RankState.STARTING) and rank.phase.upper() in WATCHED)
        or rank.state is RankState.STOPPED
    ]


def _blame(item: tuple[AgentRecord, RankReport]) -> tuple[bool, int, float, int]:
    """A stopped rank first; else the one that is furthest behind; among equals the longest silent."""
    _, rank = item
    return (rank.state is not RankState.STOPPED, rank.step, -rank.silent_s, rank.rank)


def _fault(view: View, agent: AgentRecord, rank: RankReport) -> Fault:
    pod = view.pods[agent.slot]
    stopped = " and is stopped (SIGSTOP or a debugger)" if rank.state is RankState.STOPPED else ""
    phase = f" in phase {rank.phase.upper()}" if rank.phase else ""
    return Fault(
        cause=Cause.HANG,
        message=f"rank {rank.rank} has been silent for {rank.silent_s:.1f} s{phase} at step {rank.step}{stopped}",
        slots=(agent.slot,),
        rank=rank.rank,
        pod=pod.name if pod else "",
        node=pod.node if pod else "",
        step=rank.step,
        age_s=rank.silent_s,
        clock={"detect": rank.silent_s, "decide": 0.0},
    )


def _never_started(view: View, limit: float) -> Fault | None:
    waited = since(view.status.roundOpenedAt, view.now)
    if waited < limit:
        return None
    for slot, agent in enumerate(view.agents):
        if agent is not None and agent.round < view.status.round and agent.silent_s < view.lost_after_s:
            pod = view.pods[slot]
            return Fault(
                cause=Cause.HANG,
                message=f"the agent of slot {slot} hasn't started round {view.status.round} for {waited:.1f} s",
                slots=(slot,),
                floor=Rung.POD,
                pod=pod.name if pod else "",
                node=pod.node if pod else "",
                step=view.highest_step(),
                age_s=waited,
                clock={"detect": waited, "decide": 0.0},
            )
    return None
