"""Pods whose ranks would run different programs or versions. They must not train together.

Agents report what their ranks will run, so pods are compared before a round opens, for every framework. In addition,
ranks that meet at torch's store compare what they have really imported (`trainmaster.rank.software_comparison`).
"""

from __future__ import annotations

from trainmaster.contract.wire import Cause, software_differences
from trainmaster_operator.planning.facts.fault import Fault, of_pods
from trainmaster_operator.planning.facts.observation import AgentRecord, PodRecord
from trainmaster_operator.planning.facts.view import View


def differing_pods(view: View) -> Fault | None:
    """Return the fault of the first member that differs from a member before it in the rank order; None if all are
    equal."""
    kinds: dict[int, tuple[PodRecord, AgentRecord]] = {}  # The first pod and agent of each kind of software.
    for slot in view.members:
        pod, agent = view.pods[slot], view.agents[slot]
        if pod is not None and agent is not None and agent.software:
            kinds.setdefault(id(agent.software), (pod, agent))
    # Of each name and value the first pod is kept, not only the first pod of all: it need not report every name that a
    # later one reports. As long as nothing differs, a name has one value.
    first: dict[str, tuple[int, PodRecord, AgentRecord]] = {}
    for place, (pod, agent) in enumerate(kinds.values()):
        before = []
        for name, value in agent.software.items():
            known = first.setdefault(name, (place, pod, agent))
            if known[2].software[name] != value:
                before.append(known)
        if before:
            _, one_pod, one = min(before, key=lambda entry: entry[0])
            words = software_differences.difference(one.software, one_pod.name, agent.software, pod.name)
            return of_pods(view, Cause.CONFIG_ERROR, words, (agent.slot,), pod, fatal=True)
    return None
