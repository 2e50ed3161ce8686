"""Pods that their node rejected before anything in them ran, or did not notice. They are created again, on another node
or later; that is no failure of the job.

The scheduler may not know yet what the node knows (its disk is full, a device is broken, it shuts down) and would send
the next pod to it at once, so the wait grows with each rejection. The cluster does not know at once either that a node
has died: a pod that is bound to such a node would stay Pending until pods are evicted there.
"""

from __future__ import annotations

from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.change import Change, changed, condition, warning
from trainmaster_operator.planning.facts.job_state import ReleasedStatus
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.placement import pods_to_create, replaced_pods
from trainmaster_operator.planning.placement.gang_release import SCHEDULED, doubled_wait_s
from trainmaster_operator.planning.placement.pending_pods import MESSAGE, first_of

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0


def due_s(view: View) -> float | None:
    """Return the seconds until a pod counts as not noticed by its node; None if there is none."""
    if view.round_is_open:
        return None
    waits = [
        replaced_pods.UNHEARD_S - pod.unheard_s
        for pod in view.pods
        if pod is not None and pod.unheard_s and not pod.deleting
    ]
    return min((wait for wait in waits if wait > 0), default=None)


def replace_rejected_pods(view: View) -> Change | None:
    """Replace pods that their node rejected or did not notice. The wait before the next try doubles each time."""
    if view.round_is_open:
        return None
    pods = [pod for pod in view.pods if pod is not None]
    turned_away = [pod for pod in pods if pod.rejected or (replaced_pods.ignored(pod) and not pod.deleting)]
    if not turned_away:
        return None
    times = (view.status.released.times if view.status.released is not None else 0) + 1
    wait = doubled_wait_s(FIRST_WAIT_S, LONGEST_WAIT_S, times)
    pod = turned_away[0]
    if pod.rejected:
        why = ": ".join(part for part in (pod.reason, pod.message) if part) or "the node gave no reason"
        words = f"node {pod.node or '?'} rejected pod {pod.name}: {why}"
    else:
        words = (
            f"pod {pod.name} was assigned to node {pod.node}, whose kubelet has not acted on it for "
            f"{pod.unheard_s:.0f} s"
        )
    if len(turned_away) > 1:
        words = f"{words} (and {len(turned_away) - 1} more)"
    wanted = condition(view.status, SCHEDULED, False, Cause.REFUSED.value, words[:MESSAGE], view.now)
    return changed(
        view.status,
        warning(Cause.REFUSED.value, f"{words[:MESSAGE]}; the operator creates a new pod in {wait:.0f} s"),
        incarnations=pods_to_create.raised(view, tuple(pod.slot for pod in turned_away)),
        released=ReleasedStatus(times=times, retryAt=rfc3339(view.now + wait)),
        conditions=first_of(view.status, wanted),
    )
