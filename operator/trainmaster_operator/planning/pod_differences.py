"""Pods whose ranks would run different programs, or run on different versions: they must not train together.

Agents tell what their ranks will run. So pods are compared before a round opens, whatever the framework is; ranks that
meet at torch's store compare what they really have imported there (`trainmaster.agent.comparison`).
"""

from __future__ import annotations

from trainmaster.contract.wire import Cause, software
from trainmaster_operator.planning.fault import Fault, of_pods
from trainmaster_operator.planning.observation import AgentRecord
from trainmaster_operator.planning.view import View


def differing_pods(view: View) -> Fault | None:
    """Return the fault of the first member that differs from the first one of the rank order, None if all are equal."""
    kinds: dict[int, AgentRecord] = {}  # the first agent with each object: those that tell the same share one
    for slot in view.members:
        agent = view.agents[slot]
        if agent is not None and agent.software and view.pods[slot] is not None:
            kinds.setdefault(id(agent.software), agent)
    agents = list(kinds.values())
    for agent in agents[1:]:
        first_pod, pod = view.pods[agents[0].slot], view.pods[agent.slot]
        assert first_pod is not None
        assert pod is not None
        words = software.difference(agents[0].software, first_pod.name, agent.software, pod.name)
        if words:
            return of_pods(view, Cause.CONFIG_ERROR, words, (agent.slot,), pod, fatal=True)
    return None
