"""Pods whose ranks would run different programs, or run on different versions: they must not train together.

Agents tell what their ranks will run. So pods are compared before a round opens, whatever the framework is; ranks that
meet at torch's store compare what they really have imported there (`trainmaster.rank.software_comparison`).
"""

from __future__ import annotations

from itertools import combinations

from trainmaster.contract.wire import Cause, software
from trainmaster_operator.planning.facts.fault import Fault, of_pods
from trainmaster_operator.planning.facts.observation import AgentRecord, PodRecord
from trainmaster_operator.planning.facts.view import View


def differing_pods(view: View) -> Fault | None:
    """Return the fault of the first member that differs from one before it in the rank order, None if all are equal."""
    kinds: dict[int, tuple[PodRecord, AgentRecord]] = {}  # the first of those that share one
    for slot in view.members:
        pod, agent = view.pods[slot], view.agents[slot]
        if pod is not None and agent is not None and agent.software:
            kinds.setdefault(id(agent.software), (pod, agent))
    # Each pair, since the first pod need not tell all that a later one tells.
    for (one_pod, one), (pod, agent) in combinations(kinds.values(), 2):
        words = software.difference(one.software, one_pod.name, agent.software, pod.name)
        if words:
            return of_pods(view, Cause.CONFIG_ERROR, words, (agent.slot,), pod, fatal=True)
    return None
