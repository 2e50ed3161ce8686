"""Pods without a rank: spares, and pods that were created for a larger size. Their loss does not disturb training; they
are replaced.

The wait between replacements grows: otherwise a pod that ends each time it starts would be created without end.
"""

from __future__ import annotations

from trainmaster_operator.planning.facts.change import Change, changed, normal
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.timestamps import rfc3339, since
from trainmaster_operator.planning.facts.view import ENDED, View
from trainmaster_operator.planning.liveness import silent_agents
from trainmaster_operator.planning.placement import pods_to_create

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
FORGIVEN_AFTER_S = 2 * LONGEST_WAIT_S  # Seconds without a replacement.


def replace(view: View) -> Change | None:
    """Replace pods without a rank that ended, are being deleted, or whose agents are silent. No restart is counted."""
    lost = _lost(view)
    if not lost or _wait_s(view) > 0:
        return None
    workers = view.status.workers
    again = workers.replacedAt != "" and since(workers.replacedAt, view.now) < FORGIVEN_AFTER_S
    return changed(
        view.status,
        normal("SpareReplaced", f"{_replaced(len(lost))}: slot {', '.join(map(str, lost[:8]))}"),
        incarnations=pods_to_create.raised(view, lost),
        workers=workers.model_copy(
            update={"replacedAt": rfc3339(view.now), "replacements": workers.replacements + 1 if again else 1}
        ),
    )


def replace_due_s(view: View) -> float | None:
    """Return the seconds until lost pods without a rank are replaced; None if there are none. `agents.lost_due_s`
    says for all slots when an agent counts as lost."""
    wait = _wait_s(view)
    return wait if wait > 0 and _lost(view) else None


def _lost(view: View) -> tuple[int, ...]:
    if view.status.phase is JobPhase.SUSPENDED or not view.parked:
        return ()
    silences = silent_agents.silence_s(view)
    over = view.lost_after_s if not silent_agents.suspect_ourselves(view, silences) else float("inf")
    lost = []
    for slot in view.parked:
        pod = view.pods[slot]
        if pod is None:
            vanished = view.agents[slot] is not None
        else:
            vanished = pod.phase in ENDED or pod.deleting or silences[slot] >= over
        if vanished:
            lost.append(slot)
    return tuple(lost)


def _wait_s(view: View) -> float:
    workers = view.status.workers
    if workers.replacedAt == "":
        return 0.0
    wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(workers.replacements - 1, 16))
    return max(0.0, wait - since(workers.replacedAt, view.now))


def _replaced(pods: int) -> str:
    return "1 pod without a rank is replaced" if pods == 1 else f"{pods} pods without a rank are replaced"
