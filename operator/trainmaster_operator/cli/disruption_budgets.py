"""Why a drain waits for a job's pods: a PodDisruptionBudget allows none of them to be evicted now.

A refused eviction leaves no trace on the pod, and the operator may not read budgets. A user usually may.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster_operator.cluster.port import Object
from trainmaster_operator.planning.facts.counted_nouns import counted


def refusals(budgets: Sequence[Object], pods: Sequence[Object]) -> list[str]:
    """Return a sentence for each budget that refuses the eviction of some of these pods. All of them are in one
    namespace."""
    found = []
    for budget in budgets:
        if (budget.get("status") or {}).get("disruptionsAllowed", 0) > 0:
            continue
        covered = [pod for pod in pods if _covers(budget, pod)]
        if not covered:
            continue
        name, which = budget["metadata"]["name"], counted(len(covered), "pod")
        found.append(
            f"Drains wait: PodDisruptionBudget {name} allows no eviction now, and covers {which} of this job. "
            "`kubectl delete pod` is not held up by it, and ranks save first."
        )
    return found


def _covers(budget: Object, pod: Object) -> bool:
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Pending"):
        return False  # The eviction of such pods is never refused.
    selector = (budget.get("spec") or {}).get("selector")
    if selector is None:
        return False  # Such a budget covers no pod.
    labels = pod["metadata"].get("labels") or {}
    same = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return same and all(_matches(rule, labels) for rule in selector.get("matchExpressions") or [])


def _matches(rule: Object, labels: dict[str, str]) -> bool:
    value, values = labels.get(rule["key"]), rule.get("values") or []
    match rule["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None
