"""Pods whose incarnation is over: when they are removed, and how long their replacements wait for their end."""

from __future__ import annotations

from trainmaster_operator.planning.facts.observation import PodRecord, PodToDelete
from trainmaster_operator.planning.facts.view import ENDED, View

UNHEARD_S = 15.0
"""Seconds within which a live kubelet notices a pod. Usually it takes a second or less, and longer when the kubelet
restarts."""

PATIENCE_S = 5.0
"""Seconds for which the replacement of a pod that storage fences off waits until the kubelet confirms the end of the
old pod. After that the replacement is created while the old pod still exists. The old pod keeps its devices until it
has ended, so no other pod gets them."""

SCRIPT_FORCE_AFTER_S = 20.0
"""The same for a script's pod on a node that does not answer the cluster, counted from the last answer of a leader
to its agent, or of a standby that was cut off and may have answered it. Within this time the isolated agent has ended
its ranks: it takes at most 18 s (`trainmaster.agent.shell.self_fencing`), and two more seconds are for the end of the
processes."""

STANDBY_VOUCHES_S = 300.0
"""Seconds for which the answers of a standby of the operator keep a script's ranks alive, counted from the last time
that the API server heard the standby."""

STANDBY_LOOK_S = 2.0
"""Seconds between looks at such a standby: the API server may hear it again before that time is over."""

LOST_FOR_S = 10.0
"""An agent that no operator answers keeps its ranks as long as it reaches the API server. The cluster calls a node lost
after at least ten seconds in which the API server has not heard it, so with this time there are twenty again."""


def stale(view: View) -> tuple[PodToDelete, ...]:
    """Return the pods to delete because their incarnation is over. The round of those that had a rank is over too,
    because one write raised both numbers.

    A pod is removed by force only if it is dead or harmless: it has ended; or its node is lost and the storage fence
    stops what may still run there; or its node did not notice it, and its agent would be refused if it started after
    all. A script's own files have no fence, so on a lost node its pod is removed after the time in which its agent has
    ended its ranks.

    A living pod gets the grace period of the template for its sidecars and hooks. Its agent is refused as soon as its
    incarnation is over; it kills its ranks and ends at once.
    """
    deletes = []
    for pod in view.others:
        if pod.slot < view.slots and pod.incarnation > view.incarnations[pod.slot]:
            continue  # The pod belongs to a newer status than this one; the next pass will read it.
        ended = pod.phase in ENDED and not pod.lingers
        lost = pod.node_lost and (not view.scripted or max(_script_left_s(pod), _standby_left_s(view)) <= 0)
        grace: float | None
        if ended or lost or ignored(pod):
            grace = 0.0
        elif pod.deleting:
            continue
        else:
            grace = _own_grace_s(view)
        deletes.append(
            PodToDelete(
                pod.name, pod.uid, "a newer pod of this slot replaces it", grace, replaced=pod.slot < view.slots
            )
        )
    return tuple(deletes)


def _own_grace_s(view: View) -> float | None:
    """Return the grace period in seconds; None for that of the pod's spec. An API server understands 0 as the order
    to remove the pod without waiting for its kubelet, so a template with 0 gets 1 second."""
    given = (view.spec.workers.template.get("spec") or {}).get("terminationGracePeriodSeconds")
    return 1.0 if given == 0 else None


def ignored(pod: PodRecord) -> bool:
    """Return whether the pod's node has not noticed it for so long that the node seems not to answer."""
    return pod.unheard_s >= UNHEARD_S


def stale_due_s(view: View) -> float | None:
    """Return the seconds until a pod whose end is not confirmed is removed, or until its replacement no longer
    waits; None if there is none."""
    waits = [_script_due_s(view, pod) if view.scripted else PATIENCE_S - pod.deleting_s for pod in _deleting(view)]
    return min((wait for wait in waits if wait > 0), default=None)


def waits_for_a_standby(view: View) -> str:
    """Return a sentence if a script's pod on a lost node is kept only because a standby that the API server does not
    hear may answer its agent; else ""."""
    answers = view.observed.standby_answers
    if not view.scripted or not answers.standby:
        return ""
    for pod in _deleting(view):
        if pod.node_lost and _script_left_s(pod) <= 0:
            return (
                f"pod {pod.name} on the lost node {pod.node} is kept, because its ranks may run: the operator's pod "
                f"{answers.standby} does not reach the API server and may answer the agent of {pod.name}, for at most "
                f"{STANDBY_VOUCHES_S:g} s. The ranks start after that. If the machine of {answers.standby} is off, "
                f"delete that pod by force, or its Node object, and the ranks start {SCRIPT_FORCE_AFTER_S:g} s later"
            )
    return ""


def _deleting(view: View) -> list[PodRecord]:
    return [pod for pod in view.others if pod.deleting]


def _script_due_s(view: View, pod: PodRecord) -> float:
    """Return the seconds until it is worth to look again at whether a script's pod is removed."""
    left = max(_script_left_s(pod), _standby_left_s(view))
    if pod.node_lost and view.observed.standby_answers.standby:
        return min(left, max(_script_left_s(pod), STANDBY_LOOK_S))
    return left


def _standby_left_s(view: View) -> float:
    """Return the seconds until no answer of a standby can keep the ranks on a lost node alive."""
    return SCRIPT_FORCE_AFTER_S - view.observed.standby_answers.ended_s


def _script_left_s(pod: PodRecord) -> float:
    """Return the seconds until a script's ranks in this pod are sure to be dead, if its node stays lost and no standby
    answers its agent."""
    return max(SCRIPT_FORCE_AFTER_S - _unanswered_s(pod), LOST_FOR_S - pod.node_lost_s)


def _unanswered_s(pod: PodRecord) -> float:
    """Return the seconds since a leader of the job last answered the pod's agent. The agent cannot know of a later
    directive."""
    return pod.unanswered_s or pod.deleting_s


def is_past_waiting(view: View, pod: PodRecord) -> bool:
    """Return whether the replacement no longer waits for the end of this pod: sidecars may use their whole grace
    period, an agent may not react, or a process may wait in the kernel.

    A script's files have no fence, so the next round of a script always waits for the end of all old pods, see
    `rounds.open_round`, and so does the replacement, with one exception: that of a pod on a lost node starts while the
    proof that the old ranks are dead is still awaited. It holds no ranks until the round opens, and it needs nothing
    that the lost node has. If its template starts more than the agent, it waits: an init container or a sidecar may
    write to the script's files.
    """
    if view.scripted:
        return pod.deleting and pod.node_lost and not _starts_more_than_the_agent(view)
    return pod.deleting and pod.deleting_s >= PATIENCE_S


def _starts_more_than_the_agent(view: View) -> bool:
    spec = view.spec.workers.template.get("spec") or {}
    return bool(spec.get("initContainers")) or len(spec.get("containers") or []) > 1
