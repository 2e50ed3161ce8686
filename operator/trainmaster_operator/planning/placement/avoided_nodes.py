"""Which nodes new pods avoid: those that failed jobs recently, as long as enough other nodes remain.

The list is written together with the incarnations for which it holds, so that pods are made from the status alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.contract.wire import Cause
from trainmaster_operator.api.compact_lists import unpack_counts
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.change import Change, changed, known_condition, warning
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.node_suspicion import EXCLUDED_FROM, MOST, WEIGHTS, Mark, Suspicion, score
from trainmaster_operator.planning.facts.observation import Observation, PodRecord
from trainmaster_operator.planning.facts.timestamps import seconds_of, since
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.placement import scheduling_gates
from trainmaster_operator.planning.placement.gang_release import SCHEDULED
from trainmaster_operator.planning.placement.pods_to_create import raised
from trainmaster_operator.planning.placement.replaced_pods import ignored

SHARE = 0.2
"""Largest share of the known nodes that is avoided; if two nodes or more are known, at least one may be avoided."""

PATIENCE_S = 600.0
"""Seconds for which pods must find no place before they may use tainted nodes; during this time there must also be
no sign that an autoscaler adds others."""

_BROKEN = ("UnexpectedAdmissionError",)


def of_failure(uid: str, status: JobState) -> tuple[str, Mark] | None:
    """Return (node, reason) for the job's last failure; None if it says nothing about a node."""
    failure = status.lastFailure
    if failure is None or not failure.node or failure.cause not in {cause.value for cause in WEIGHTS}:
        return None
    mark = Mark(f"{uid[:8]}/{failure.round}/{failure.time}", uid[:8], failure.cause, seconds_of(failure.time))
    return failure.node, mark


def of_rejection(uid: str, pod: PodRecord, now: float) -> tuple[str, Mark] | None:
    """Return (node, reason) for a pod that its node rejected because a resource was missing that the scheduler
    counted on; None for any other pod."""
    broken = pod.reason in _BROKEN or pod.reason.startswith("OutOf")
    if not (pod.rejected and pod.node and broken):
        return None
    return pod.node, Mark(f"pod/{pod.uid[:8]}", uid[:8], Cause.REFUSED.value, now)


def avoid(spec: JobSpec, status: JobState, observed: Observation, now: float) -> list[str]:
    """Return the nodes that pods created from now on avoid, most suspect first. `status`: with the newest failure
    and the new incarnations."""
    if not spec.recovery.nodes.avoid or status.avoidedInVain:
        return []
    known = observed.suspicion
    marks = {node: list(given) for node, given in known.marks.items()}
    reasons = [of_failure(observed.uid, status), *(of_rejection(observed.uid, pod, now) for pod in observed.pods)]
    for node, mark in filter(None, reasons):
        if all(mark.id != one.id for one in marks.setdefault(node, [])):
            marks[node].append(mark)
    scores = {node: score(given, now, known.half_life_s) for node, given in marks.items()}
    suspect = sorted((n for n, s in scores.items() if s >= EXCLUDED_FROM), key=lambda n: (-scores[n], n))
    # For a node that does not answer there is no doubt, so it does not count against the share of suspect nodes.
    dead = [*_ignoring(status, observed), *_silent(status, observed)]
    return list(dict.fromkeys([*dead, *suspect[: _most(known)]]))[:MOST]


def _given_up(status: JobState, observed: Observation) -> list[PodRecord]:
    counts = unpack_counts(status.incarnations)
    return [pod for pod in observed.pods if pod.slot < len(counts) and pod.incarnation < counts[pod.slot]]


def _ignoring(status: JobState, observed: Observation) -> list[str]:
    """Return the nodes that did not notice pods that were bound to them."""
    return sorted({pod.node for pod in _given_up(status, observed) if ignored(pod)})


def _silent(status: JobState, observed: Observation) -> list[str]:
    """Return the nodes of replaced pods that still seem to run. These nodes do not answer now, but the scheduler
    learns of it half a minute later and would send the new pods to them until then."""
    if status.lastFailure is None or status.lastFailure.cause != Cause.AGENT_LOST.value:
        return []
    runs = (
        pod
        for pod in _given_up(status, observed)
        if pod.phase == "Running" and not (pod.lingers or pod.deleting or pod.node_lost)
    )
    return sorted({pod.node for pod in runs if pod.node})


def _most(known: Suspicion) -> int:
    return 0 if known.nodes < 2 else min(MOST, max(1, int(SHARE * known.nodes)))


def relax_avoidance(view: View) -> Change | None:
    """Let pods go anywhere when they find no place elsewhere: a suspect node is better than none.

    At once for pods whose affinity excludes nodes by name: an autoscaler might bring another node, but Karpenter
    ignores such pods (kubernetes-sigs/karpenter#3214). Where nodes are tainted, an autoscaler is given its time first.
    """
    status = view.status
    slots = tuple(pod.slot for pod in view.pods if pod is not None and pod.keeps_away and _lacks_a_place(pod))
    if status.avoidNodes and slots:  # This also concerns spares while a round is open, when all members have a place.
        return _allowed(view, status.avoidNodes, avoidNodes=[], incarnations=raised(view, slots))
    due = due_s(view)
    if due is None or due > 0:
        return None
    return _allowed(view, view.observed.tainted, avoidNodes=list(view.observed.tainted[:MOST]))


def due_s(view: View) -> float | None:
    """Return the seconds until pods may use nodes that this operator has tainted; None if that is not to happen."""
    if view.round_is_open or not _unallowed(view) or scheduling_gates.hold(view):
        return None
    if not any(pod is not None and _lacks_a_place(pod) for pod in view.pods):
        return None
    known = known_condition(view.status, SCHEDULED)
    if known is None or known.status != "False":
        return None  # This pass writes the condition.
    places = view.observed.new_places
    return PATIENCE_S - min(since(known.lastTransitionTime, view.now), places.asked_s, places.joined_s)


def _unallowed(view: View) -> list[str]:
    """Return the tainted nodes that the job is not yet allowed to use."""
    allowed = view.status.avoidNodes if view.status.avoidedInVain else []
    return [node for node in view.observed.tainted if node not in allowed]


def _allowed(view: View, names: Sequence[str], **fields: object) -> Change:
    words = f"the pods find no other place, so they may use these nodes again: {', '.join(names)}"
    return changed(view.status, warning("NodesAllowed", words[:512]), avoidedInVain=True, **fields)


def _lacks_a_place(pod: PodRecord) -> bool:
    return pod.phase == "Pending" and pod.reason == "Unschedulable" and not pod.deleting
