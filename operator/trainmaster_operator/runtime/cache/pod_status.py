"""What a Pod object says about the agent's container, which is the first one of its spec.

A kubelet sorts container statuses by name, reports Running while any container runs, and reports in a condition why a
pod was removed.
"""

from __future__ import annotations

from typing import NamedTuple

from trainmaster_operator.cluster.port import Object
from trainmaster_operator.manifests.node_affinity import excludes_nodes

_NORMAL_WAITS = (None, "", "ContainerCreating", "PodInitializing")
_ENDED = ("Succeeded", "Failed")
INIT_FAILED = "InitContainerFailed"


class PodState(NamedTuple):
    """The state of the agent's container and of its pod. The fields are those of `PodRecord`."""

    phase: str
    reason: str
    message: str
    exit_code: int | None
    disruption: str
    node_lost: bool
    rejected: bool
    lingers: bool
    unheard: bool
    placed_at: str
    keeps_away: bool


def read(pod: Object) -> PodState:
    """Return the state of a Pod object."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    phase = status.get("phase") or "Pending"
    end = _end(spec, status, phase)
    exit_code = int(end["exitCode"]) if end is not None else None
    lingers = end is not None and phase not in _ENDED
    if end is not None and not status.get("reason"):
        phase = "Failed" if exit_code else "Succeeded"
    reason, message = _why(status, end, conditions)
    disrupted = conditions.get("DisruptionTarget") or {}
    return PodState(
        phase=phase,
        reason=reason,
        message=message,
        exit_code=exit_code,
        disruption=disrupted.get("reason") or "Evicted" if disrupted.get("status") == "True" else "",
        node_lost=_on_a_lost_node(spec, status, conditions),
        rejected=phase == "Failed" and not _ran(status),
        lingers=lingers,
        unheard=phase == "Pending" and bool(spec.get("nodeName")) and not _taken(status),
        placed_at=_placed_at(conditions),
        keeps_away=excludes_nodes(spec),
    )


def _end(spec: Object, status: Object, phase: str) -> Object | None:
    """Return how the agent's container ended, or None if it has not."""
    statuses = status.get("containerStatuses") or []
    first = ((spec.get("containers") or [{}])[0]).get("name")
    main = next((s for s in statuses if s.get("name") == first), statuses[0] if len(statuses) == 1 else None)
    if main is None:
        return None
    ended: Object | None = (main.get("state") or {}).get("terminated")
    if ended is None and phase in _ENDED:
        ended = (main.get("lastState") or {}).get("terminated")
    return ended if ended is not None and ended.get("exitCode") is not None else None


def _placed_at(conditions: dict[str, Object]) -> str:
    """Return the time at which the scheduler found a node, or ""."""
    scheduled = conditions.get("PodScheduled") or {}
    return scheduled.get("lastTransitionTime") or "" if scheduled.get("status") == "True" else ""


def _taken(status: Object) -> bool:
    """Return whether the kubelet has noticed the pod. It reports that before it pulls any image."""
    return bool(status.get("startTime") or status.get("initContainerStatuses") or status.get("containerStatuses"))


def _ran(status: Object) -> bool:
    """Return whether anything in the pod was started, even if only an init container."""
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return any(
        state.get("running") or state.get("terminated")
        for container in containers
        for state in (container.get("state") or {}, container.get("lastState") or {})
    )


def _why(status: Object, end: Object | None, conditions: dict[str, Object]) -> tuple[str, str]:
    """Return (reason, message) of the pod's state; empty strings if there is nothing to report."""
    if status.get("reason"):
        return status["reason"], status.get("message") or ""
    if end is not None:
        return end.get("reason") or "", end.get("message") or ""
    inits = status.get("initContainerStatuses") or []
    for container in [*inits, *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in _NORMAL_WAITS:
            return waiting["reason"], waiting.get("message") or ""
    for container in inits if status.get("phase") == "Failed" else []:
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            words = f"init container {container.get('name')} ended with exit code {ended['exitCode']}"
            last = ended.get("message") or ended.get("reason") or ""
            return INIT_FAILED, f"{words}: {last}" if last else words
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False" and status.get("phase") in (None, "Pending"):
        return scheduled.get("reason") or "Unschedulable", scheduled.get("message") or ""
    return "", status.get("message") or ""


def _on_a_lost_node(spec: Object, status: Object, conditions: dict[str, Object]) -> bool:
    """Return whether the pod's node does not answer. For such a node the node controller sets the pods' condition
    Ready to false and leaves everything else as the kubelet last reported it, so a pod with ready containers is not
    ready."""
    if status.get("reason") == "NodeLost":
        return True
    if status.get("phase") != "Running" or spec.get("readinessGates"):
        return False
    ready, containers = conditions.get("Ready") or {}, conditions.get("ContainersReady") or {}
    return ready.get("status") in ("False", "Unknown") and containers.get("status") == "True"
