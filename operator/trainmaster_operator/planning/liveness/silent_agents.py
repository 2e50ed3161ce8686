"""Agents of which nothing was heard for too long, and nodes that do not answer either."""

from __future__ import annotations

from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.computed_once import once
from trainmaster_operator.planning.facts.fault import Fault, of_pods
from trainmaster_operator.planning.facts.view import ENDED, View
from trainmaster_operator.planning.liveness import peer_liveness

QUIET_S = 5.0
"""Seconds of silence that are enough if the cluster says that the agent's node does not answer either."""


def lost(view: View) -> Fault | None:
    """Return the fault of agents that were silent for too long. Return None if so many agents are silent that the
    operator's own connection is more likely the reason."""
    silences = silence_s(view)
    gone = _on_lost_nodes(view, silences)
    if gone:
        return _given_up(view, silences, gone, Cause.NODE_LOST)
    gone = peer_liveness.gone(view, silences)
    if gone:
        return _given_up(view, silences, gone, Cause.AGENT_LOST, ", and the pod that watches it cannot reach it")
    over = [slot for slot in sorted(view.members) if silences[slot] >= view.lost_after_s]
    if not over or suspect_ourselves(view, silences):
        return None
    return _given_up(view, silences, over, Cause.AGENT_LOST)


def _given_up(view: View, silences: list[float], over: list[int], cause: Cause, more: str = "") -> Fault:
    slot = max(over, key=lambda s: (silences[s], -s))
    slots = (slot, *(s for s in over if s != slot))
    pod = view.pods[slot]
    assert pod is not None
    words = f"the agent of {pod.name} has been silent for {silences[slot]:.1f} s{more}"
    if cause is Cause.NODE_LOST:
        words = f"node {pod.node} doesn't answer, and {words}"
    return of_pods(view, cause, words, slots, pod, age_s=silences[slot])


def _on_lost_nodes(view: View, silences: list[float]) -> list[int]:
    """Return the slots whose agent and whose node are silent. Agents report to the operator and kubelets report to
    the API server, so both rarely fail together. If this holds for all of several nodes, the control plane is more
    likely the reason, and the result is []."""
    quiet = _quiet_s(view)
    gone = [slot for slot, pod in enumerate(view.pods) if pod and pod.node_lost and silences[slot] >= quiet]
    if not gone:
        return []
    nodes = {pod.node for pod in view.pods if pod is not None}
    lost_nodes = {pod.node for slot in gone if (pod := view.pods[slot]) is not None}
    members = frozenset(view.members)
    return [] if len(lost_nodes) > 1 and lost_nodes == nodes else [slot for slot in gone if slot in members]


def lost_due_s(view: View) -> float | None:
    """Return the seconds until the next agent counts as lost if it stays silent; None if there is none."""
    silences = silence_s(view)
    waits = [view.lost_after_s - s for s in silences if 0 <= s < view.lost_after_s]
    quiet = _quiet_s(view)
    waits += [quiet - s for pod, s in zip(view.pods, silences, strict=True) if pod and pod.node_lost and 0 <= s < quiet]
    if any(s >= view.lost_after_s for s in silences):
        waits.append(view.lost_after_s / 2)  # Too many agents are silent to decide, so the planner looks again.
    if (wait := peer_liveness.due_s(view, silences)) is not None:
        waits.append(wait)
    return min(waits, default=None)


def _quiet_s(view: View) -> float:
    return min(view.lost_after_s, max(QUIET_S, 4 * view.interval_s))


@once
def silence_s(view: View) -> list[float]:
    """Return for each slot the seconds for which its agent has been silent, as far as this leader can tell; -1 where
    silence means nothing."""
    silences = []
    for pod, agent in zip(view.pods, view.agents, strict=True):
        if pod is None or pod.deleting or pod.phase in ENDED:
            silences.append(-1.0)
        elif agent is not None:
            silences.append(agent.silent_s)
        elif pod.running_s > 0 and pod.phase == "Running":
            silences.append(min(view.observed.leading_s, pod.running_s))
        else:
            silences.append(-1.0)
    return silences


def suspect_ourselves(view: View, silences: list[float]) -> bool:
    """Return whether more than one agent, and more than a third of them, have been silent for half of the limit.
    Then the operator's own connection is suspect."""
    quiet = sum(1 for s in silences if s >= view.lost_after_s / 2)
    return quiet > 1 and quiet * 3 > view.slots
