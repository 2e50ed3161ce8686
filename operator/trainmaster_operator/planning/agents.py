"""Pods that ended, and agents that fell silent."""

from __future__ import annotations

from trainmaster.contract.wire import EXIT_CODES, Cause, ExitCode
from trainmaster_operator.planning import drain
from trainmaster_operator.planning.fault import Fault, of_pods
from trainmaster_operator.planning.observation import PodRecord
from trainmaster_operator.planning.view import ENDED, View

_REASONS = {
    "OOMKilled": Cause.OUT_OF_MEMORY,
    "Evicted": Cause.EVICTED,
    "DisruptionTarget": Cause.EVICTED,
    "NodeShutdown": Cause.EVICTED,
    "Terminated": Cause.EVICTED,  # by a graceful node shutdown
    "Preempting": Cause.PREEMPTED,
    "Preempted": Cause.PREEMPTED,
    "NodeLost": Cause.NODE_LOST,
}
_FREE = (Cause.EVICTED, Cause.PREEMPTED)
_FATAL_CODES = (ExitCode.CONFIG_ERROR, ExitCode.DATA_ERROR, ExitCode.DIVERGED, ExitCode.DO_NOT_RESTART)


def ended(view: View) -> Fault | None:
    """Proof at once: a pod that ended, vanished, or is being deleted by someone else, before its ranks were done."""
    found: list[tuple[int, Cause, PodRecord | None]] = []
    going: list[tuple[int, Cause, PodRecord | None]] = []
    for slot, pod in enumerate(view.pods):
        agent = view.agents[slot]
        if (
            view.round_is_open
            and agent is not None
            and agent.round == view.status.round
            and (agent.done or agent.saved)
        ):
            continue  # the others may still be at work
        if pod is None:
            if view.round_is_open:  # it opened with every pod there
                found.append((slot, Cause.EVICTED, None))
        elif pod.phase in ENDED:
            found.append((slot, _cause(pod), pod))
        elif pod.deleting:
            (going if drain.saves_first(view, slot) else found).append((slot, Cause.EVICTED, pod))
    if not found:
        return None
    found += going
    # All that ended are replaced in one go; one that ended by itself explains more than one that was taken away.
    found.sort(key=lambda item: (item[1] in _FREE, item[0]))
    slot, cause, pod = found[0]
    return of_pods(
        view,
        cause,
        _words(slot, pod, len(found)),
        tuple(slot for slot, _, _ in found),
        pod,
        free=cause in _FREE,
        fatal=pod is not None and pod.exit_code in _FATAL_CODES,
    )


def lost(view: View) -> Fault | None:
    """Agents silent for too long, unless so many are silent that the fault is more likely ours."""
    silences = _silences(view)
    over = [slot for slot, silence in enumerate(silences) if silence >= view.lost_after_s]
    if not over or _suspect_ourselves(view, silences):
        return None
    slot = max(over, key=lambda s: (silences[s], -s))
    slots = (slot, *(s for s in over if s != slot))
    pod = view.pods[slot]
    assert pod is not None
    return of_pods(
        view,
        Cause.AGENT_LOST,
        f"the agent of {pod.name} has been silent for {silences[slot]:.1f} s",
        slots,
        pod,
        age_s=silences[slot],
    )


def lost_due_s(view: View) -> float | None:
    """When the next agent counts as lost if it stays silent."""
    silences = _silences(view)
    waits = [view.lost_after_s - s for s in silences if 0 <= s < view.lost_after_s]
    if any(s >= view.lost_after_s for s in silences):
        waits.append(view.lost_after_s / 2)  # too many are silent: look again
    return min(waits, default=None)


def _silences(view: View) -> list[float]:
    """Of each slot: since when its agent is silent, as far as this leader can tell; -1 where that means nothing."""
    silences = []
    for pod, agent in zip(view.pods, view.agents, strict=True):
        if pod is None or pod.deleting or pod.phase in ENDED:
            silences.append(-1.0)
        elif agent is not None:
            silences.append(agent.silent_s)
        elif pod.running_s > 0 and pod.phase == "Running":
            silences.append(min(view.observed.leading_s, pod.running_s))
        else:
            silences.append(-1.0)
    return silences


def _suspect_ourselves(view: View, silences: list[float]) -> bool:
    """More than a third of the agents, and more than one, have been quiet for half of the limit."""
    quiet = sum(1 for s in silences if s >= view.lost_after_s / 2)
    return quiet > 1 and quiet * 3 > view.slots


def _cause(pod: PodRecord) -> Cause:
    if pod.reason in _REASONS:
        return _REASONS[pod.reason]
    if pod.exit_code == ExitCode.SAVED:
        return Cause.PREEMPTED  # told to end, it saved and left
    if pod.exit_code in _FATAL_CODES:
        return EXIT_CODES[pod.exit_code]
    return Cause.AGENT_LOST


def _words(slot: int, pod: PodRecord | None, count: int) -> str:
    if pod is None:
        words = f"the pod of slot {slot} is gone"
    elif pod.phase in ENDED:
        code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
        why = ": ".join(part for part in (pod.reason, pod.message) if part)
        words = f"pod {pod.name} ended{code}" + (f": {why}" if why else "")
    else:
        words = f"pod {pod.name} is being deleted"
    return words if count == 1 else f"{words} (and {count - 1} more)"
