"""Which nodes new pods keep away from: those that failed jobs lately, as long as enough others are left.

The choice is written with the incarnations that it is for, so that pods are made of the status alone.
"""

from __future__ import annotations

from trainmaster.contract.wire import Cause
from trainmaster_operator.api.job import JobSpec
from trainmaster_operator.api.meta import unpack_counts
from trainmaster_operator.planning.change import Change, changed, warning
from trainmaster_operator.planning.observation import Observation, PodRecord
from trainmaster_operator.planning.start import ignored, raised
from trainmaster_operator.planning.state import JobState
from trainmaster_operator.planning.suspicion import EXCLUDED_FROM, MOST, WEIGHTS, Mark, Suspicion, score
from trainmaster_operator.planning.times import seconds_of
from trainmaster_operator.planning.view import View

_BROKEN = ("UnexpectedAdmissionError",)


def of_failure(uid: str, status: JobState) -> tuple[str, Mark] | None:
    """(node, reason) that the job's last failure is."""
    failure = status.lastFailure
    if failure is None or not failure.node or failure.cause not in {cause.value for cause in WEIGHTS}:
        return None
    mark = Mark(f"{uid[:8]}/{failure.round}/{failure.time}", uid[:8], failure.cause, seconds_of(failure.time))
    return failure.node, mark


def of_rejection(uid: str, pod: PodRecord, now: float) -> tuple[str, Mark] | None:
    """(node, reason) that a pod is which the node turned away: what the scheduler counted on isn't there."""
    broken = pod.reason in _BROKEN or pod.reason.startswith("OutOf")
    if not (pod.rejected and pod.node and broken):
        return None
    return pod.node, Mark(f"pod/{pod.uid[:8]}", uid[:8], Cause.REFUSED.value, now)


def avoid(spec: JobSpec, status: JobState, observed: Observation, now: float) -> list[str]:
    """The nodes that pods made from now on keep away from, most suspect first. `status`: with the newest failure and
    the new incarnations."""
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
    # Nodes that answer nobody are no matter of opinion, so they don't count against the share of suspect ones.
    dead = [*_ignoring(status, observed), *_silent(status, observed)]
    return list(dict.fromkeys([*dead, *suspect[: _most(known)]]))[:MOST]


def _given_up(status: JobState, observed: Observation) -> list[PodRecord]:
    counts = unpack_counts(status.incarnations)
    return [pod for pod in observed.pods if pod.slot < len(counts) and pod.incarnation < counts[pod.slot]]


def _ignoring(status: JobState, observed: Observation) -> list[str]:
    """Where pods were sent that nobody there took note of."""
    return sorted({pod.node for pod in _given_up(status, observed) if ignored(pod)})


def _silent(status: JobState, observed: Observation) -> list[str]:
    """Where pods are given up that say they run: their nodes answer nobody now, and the scheduler learns of it half a
    minute later. Until then it would send their successors to them."""
    if status.lastFailure is None or status.lastFailure.cause != Cause.AGENT_LOST.value:
        return []
    runs = (
        pod
        for pod in _given_up(status, observed)
        if pod.phase == "Running" and not (pod.lingers or pod.deleting or pod.node_lost)
    )
    return sorted({pod.node for pod in runs if pod.node})


def _most(known: Suspicion) -> int:
    return 0 if known.nodes < 2 else min(MOST, max(1, int(known.share * known.nodes)))


def relaxed(view: View) -> Change | None:
    """Let pods go anywhere as soon as one that keeps away from nodes finds no place.

    A suspect node is better than none. And a node autoscaler may bring another one, but Karpenter ignores pods that
    exclude nodes by name (kubernetes-sigs/karpenter#3214). Where nodes are tainted instead, no pod excludes any.
    """
    status = view.status
    if not status.avoidNodes or view.round_is_open:
        return None
    slots = tuple(pod.slot for pod in view.pods if pod is not None and _is_kept_from_a_place(pod))
    if not slots:
        return None
    words = f"no other place is found: {', '.join(status.avoidNodes)} may be used again"
    return changed(
        status,
        warning("NodesAllowed", words[:512]),
        avoidNodes=[],
        avoidedInVain=True,
        incarnations=raised(view, slots),
    )


def _is_kept_from_a_place(pod: PodRecord) -> bool:
    return pod.keeps_away and pod.phase == "Pending" and pod.reason == "Unschedulable" and not pod.deleting
