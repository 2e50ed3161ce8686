"""Pods that were told to end (evicted, preempted, deleted by a person): the ranks save first, then the pods are
replaced. The restart uses no budget."""

from __future__ import annotations

from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.job_state import JobPhase, Rung
from trainmaster_operator.planning.facts.view import ENDED, View
from trainmaster_operator.planning.lifecycle import stop_messages


def leaving(view: View) -> tuple[int, ...]:
    """Return the slots whose pod will end soon and whose agent can still take part in a save."""
    return tuple(slot for slot in sorted(view.members) if saves_first(view, slot))


def saves_first(view: View, slot: int) -> bool:
    """Return whether the slot's pod is about to end while training runs and its agent answers, so that its ranks can
    save first."""
    pod, agent = view.pods[slot], view.agents[slot]
    if pod is None or agent is None or pod.phase in ENDED or not (pod.deleting or agent.draining):
        return False
    status = view.status
    resizes = status.phase is JobPhase.RESIZING and status.stopAt is not None
    trains = view.round_is_open and (resizes or status.phase in (JobPhase.RUNNING, JobPhase.SUSPENDING))
    return trains and agent.round == status.round and agent.silent_s < view.lost_after_s


def saved(view: View) -> Fault | None:
    """Return the fault of the pods that leave, once every rank has stopped on request and the job is not to be
    suspended. The job then continues without these pods. Return None otherwise."""
    if not view.round_is_open or not view.all_saved:
        return None
    slots = tuple(slot for slot in sorted(view.members) if _goes(view, slot))
    pod = view.pods[slots[0]] if slots else None
    return Fault(
        cause=Cause.PREEMPTED,
        message=(f"{_why(view, slots[0])}: " if slots else "") + stop_messages.stopped_words(view),
        slots=slots or view.members[:1],
        floor=Rung.POD if slots else Rung.IN_PLACE,
        free=bool(slots),
        pod=pod.name if pod else "",
        node=pod.node if pod else "",
        step=view.highest_step(),
    )


def _goes(view: View, slot: int) -> bool:
    pod, agent = view.pods[slot], view.agents[slot]
    return pod is None or pod.deleting or pod.phase in ENDED or (agent is not None and agent.draining)


def _why(view: View, slot: int) -> str:
    """Return why the pod of the slot ends, as far as the pod shows it."""
    pod = view.pods[slot]
    if pod is None:
        return f"the pod of slot {slot} was deleted"
    if pod.disruption:
        return f"the cluster terminates pod {pod.name} ({pod.disruption})"
    return f"pod {pod.name} was deleted" if pod.deleting else f"pod {pod.name} is being terminated"
