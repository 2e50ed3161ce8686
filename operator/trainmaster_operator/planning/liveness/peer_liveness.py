"""A second signal for a silent agent: the one before it in the order of the round doesn't get an answer either.

Agents look after each other in a ring. One that we hear, and that can't reach the next one, makes a short silence of
that one enough. Behind it, whoever is silent too is gone with it: its own witness is among the lost. When the silent
ones are many and of several nodes, it is more likely a network that is split, and nothing is done in a hurry.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster_operator.planning.facts.view import View

SILENCE_S = 2.0
"""Of an agent whose loss is witnessed: it has missed several reports."""


def limit_s(view: View) -> float:
    """Return after how many seconds of silence an agent is lost if its neighbour can't reach it either."""
    return min(view.lost_after_s, max(SILENCE_S, 4 * view.interval_s))


def gone(view: View, silences: Sequence[float]) -> list[int]:
    """Return the members that are lost beyond doubt, in the order of the round. `silences`: seconds, by slot."""
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
    """Return after how many seconds the next member that is accused has been silent for long enough.

    None if none is.
    """
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
    """More than a third of the members is silent, more than one, and not all of one node beside others that speak."""
    if len(quiet) < 2 or len(quiet) * 3 <= len(view.members):
        return False
    nodes = {pod.node for slot in quiet if (pod := view.pods[slot]) is not None}
    others = {pod.node for slot in view.members if slot not in quiet and (pod := view.pods[slot]) is not None}
    return len(nodes) != 1 or not others - nodes
