"""A second signal for a silent agent: its neighbour, the agent before it in the order of the round, cannot reach it
either.

Agents watch each other in a ring. If an agent that the operator hears cannot reach the next one, a short silence of
that one is enough to count it as lost. Silent agents that follow it in the ring count as lost too, because the agent
that watched them is lost. If many agents on several nodes are silent, a network partition is more likely, and the
operator does not act early.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster_operator.planning.facts.view import View

SILENCE_S = 2.0
"""Seconds of silence after which an agent that its neighbour cannot reach counts as lost: it has missed several
reports."""


def limit_s(view: View) -> float:
    """Return the seconds of silence after which an agent that its neighbour cannot reach counts as lost."""
    return min(view.lost_after_s, max(SILENCE_S, 4 * view.interval_s))


def gone(view: View, silences: Sequence[float]) -> list[int]:
    """Return the members that are certainly lost, in the order of the round."""
    limit, order = limit_s(view), view.members
    quiet = {slot for slot in order if silences[slot] >= limit}
    if not quiet or _is_split(view, quiet):
        return []
    found: dict[int, None] = {}
    for place, slot in enumerate(order):
        if slot in quiet and _accused(view, order[place - 1], slot, limit):
            for behind in range(len(order)):
                next_one = order[(place + behind) % len(order)]
                if next_one not in quiet:
                    break
                found[next_one] = None
    return list(found)


def due_s(view: View, silences: Sequence[float]) -> float | None:
    """Return the seconds until the next member that its neighbour cannot reach counts as lost; None if there is
    none."""
    limit, order = limit_s(view), view.members
    waits = [
        limit - silences[slot]
        for place, slot in enumerate(order)
        if 0 <= silences[slot] < limit and _accused(view, order[place - 1], slot, limit)
    ]
    return min(waits, default=None)


def _accused(view: View, witness: int, slot: int, limit: float) -> bool:
    agent = view.agents[witness]
    if agent is None or witness == slot or agent.round != view.status.round or not view.round_is_open:
        return False
    return agent.neighbour_lost == slot and agent.silent_s < limit


def _is_split(view: View, quiet: set[int]) -> bool:
    """Return whether more than one member, and more than a third of them, are silent, unless all silent ones are on
    one node and members on other nodes report."""
    if len(quiet) < 2 or len(quiet) * 3 <= len(view.members):
        return False
    nodes = {pod.node for slot in quiet if (pod := view.pods[slot]) is not None}
    others = {pod.node for slot in view.members if slot not in quiet and (pod := view.pods[slot]) is not None}
    return len(nodes) != 1 or not others - nodes
