"""Which nodes new pods keep away from: those that failed jobs lately, as long as enough others are left.

The choice is written with the incarnations that it is for, so that pods are made of the status alone.
"""

from __future__ import annotations

from trainmaster.contract.wire import Cause
from trainmaster_operator.api.job import JobSpec
from trainmaster_operator.api.meta import unpack_counts
from trainmaster_operator.planning.facts.change import Change, changed, warning
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.node_suspicion import Mark, Suspicion
from trainmaster_operator.planning.facts.observation import Observation, PodRecord
from trainmaster_operator.planning.facts.times import seconds_of, since
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.placement.node_score import EXCLUDED_FROM, MOST, WEIGHTS, score
from trainmaster_operator.planning.placement.pod_slots import ignored, raised

RELAX_AFTER_S = 60.0
"""How long new pods that find no place keep away from nodes."""

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
    if not spec.recovery.nodes.avoid:
        return []
    known = observed.suspicion
    marks = {node: list(given) for node, given in known.marks.items()}
    reasons = [of_failure(observed.uid, status), *(of_rejection(observed.uid, pod, now) for pod in observed.pods)]
    for node, mark in filter(None, reasons):
        if all(mark.id != one.id for one in marks.setdefault(node, [])):
            marks[node].append(mark)
    scores = {node: score(given, now, known.half_life_s) for node, given in marks.items()}
    suspect = sorted((n for n, s in scores.items() if s >= EXCLUDED_FROM), key=lambda n: (-scores[n], n))
    return list(dict.fromkeys([*_ignoring(status, observed), *_silent(status, observed), *suspect]))[: _most(known)]


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
    """A suspect node is better than none: pods that find no place may go anywhere again."""
    status = view.status
    if not status.avoidNodes or view.round_is_open:
        return None
    slots = tuple(pod.slot for pod in _kept_away(view))
    if not slots or since(status.roundOpenedAt or status.startTime, view.now) < RELAX_AFTER_S:
        return None
    words = f"no other place is found: {', '.join(status.avoidNodes)} may be used again"
    return changed(status, warning("NodesAllowed", words[:512]), avoidNodes=[], incarnations=raised(view, slots))


def due_s(view: View) -> float | None:
    status = view.status
    if not status.avoidNodes or view.round_is_open or not _kept_away(view):
        return None
    wait = RELAX_AFTER_S - since(status.roundOpenedAt or status.startTime, view.now)
    return wait if wait > 0 else None


def _kept_away(view: View) -> list[PodRecord]:
    """Pods without a place, where affinity is a reason."""
    waiting = (pod for pod in view.pods if pod is not None and pod.phase == "Pending" and not pod.deleting)
    return [pod for pod in waiting if pod.reason == "Unschedulable" and "affinity" in pod.message]
