"""How the memory store deletes and evicts a Pod as a real API server does: its grace period, and the condition of an
eviction."""

from __future__ import annotations

from trainmaster_operator.cluster import objects
from trainmaster_operator.cluster.port import Object

DEFAULT_GRACE_S = 30  # For a Pod whose template gives no grace period.


def grace_s(pod: Object, wanted_s: int | None) -> int:
    """Return the grace period in seconds as a real API server does: 0 for a Pod that is not on a node or has ended,
    because there is no kubelet to wait for."""
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    if wanted_s is not None:
        return wanted_s if wanted_s >= 0 else 1
    return int(pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S))


def disrupted(pod: Object, at: float) -> Object | None:
    """Return the Pod with the condition of an eviction, or None if it has it already. `at`: seconds since 1970."""
    conditions = pod["status"].get("conditions") or []
    if any((c["type"], c["status"]) == ("DisruptionTarget", "True") for c in conditions):
        return None
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": objects.timestamp(at),
    }
    others = [c for c in conditions if c["type"] != "DisruptionTarget"]
    return {**pod, "status": {**pod["status"], "conditions": [*others, condition]}}
