"""Pods whose ranks would run different programs, or run on different versions: they must not train together.

Agents tell what their ranks will run. So pods are compared before a round opens, whatever the framework is; ranks that
meet at torch's store compare what they really have imported there (`trainmaster.agent.comparison`).
"""

from __future__ import annotations

from trainmaster.contract.wire import Cause, software
from trainmaster_operator.planning.fault import Fault, of_pods
from trainmaster_operator.planning.view import View


def differing_pods(view: View) -> Fault | None:
    """Return the fault of the first member that differs from one before it in the rank order, None if all are equal."""
    told = [(pod, agent.software) for slot in view.members if (pod := view.pods[slot]) and (agent := view.agents[slot])]
    if not told:
        return None
    first_pod, first = told[0]
    for pod, own in told:
        if own == first:
            continue
        words = software.difference(first, first_pod.name, own, pod.name)
        if words:
            return of_pods(view, Cause.CONFIG_ERROR, words, (pod.slot,), pod, fatal=True)
    return None
