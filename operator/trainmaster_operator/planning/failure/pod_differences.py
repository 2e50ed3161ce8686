"""Pods whose ranks would run different programs or versions. They must not train together.

Agents report what their ranks will run, so pods are compared before a round opens, for every framework. In addition,
ranks that meet at torch's store compare what they have really imported (`trainmaster.rank.software_comparison`).
"""

from __future__ import annotations

from itertools import combinations

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
    # All pairs are compared, because the first pod need not report everything that a later one reports.
    for (one_pod, one), (pod, agent) in combinations(kinds.values(), 2):
        words = software_differences.difference(one.software, one_pod.name, agent.software, pod.name)
        if words:
            return of_pods(view, Cause.CONFIG_ERROR, words, (agent.slot,), pod, fatal=True)
    return None
