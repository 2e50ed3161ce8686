"""Pods of a round that ended, vanished or were replaced, and the cause that their status shows."""

from __future__ import annotations

import re

from trainmaster.contract.wire import EXIT_CODES, Cause, ExitCode, Verdict, termination_message
from trainmaster_operator.planning.facts.fault import FATAL, Fault, of_pods
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.planning.facts.view import ENDED, View
from trainmaster_operator.planning.failure import drain
from trainmaster_operator.planning.rounds import round_pod_identity

_FREE = (Cause.EVICTED, Cause.PREEMPTED)
_REASONS = {
    "OOMKilled": Cause.OUT_OF_MEMORY,
    "Evicted": Cause.EVICTED,
    "DisruptionTarget": Cause.EVICTED,
    "NodeShutdown": Cause.EVICTED,
    "Shutdown": Cause.EVICTED,
    "Terminated": Cause.EVICTED,  # A graceful shutdown of the node.
    "Preempting": Cause.PREEMPTED,
    "Preempted": Cause.PREEMPTED,
    "NodeLost": Cause.NODE_LOST,
    "NodeAffinity": Cause.REFUSED,  # The kubelet rejected the pod, because it knew more than the scheduler.
    "UnexpectedAdmissionError": Cause.REFUSED,
    "InitContainerFailed": Cause.CRASH,
}
_DISRUPTIONS = {"PreemptionByScheduler": Cause.PREEMPTED, "DeletionByPodGC": Cause.NODE_LOST}
_NOT_STARTED = ("StartError", "ContainerCannotRun")
_NO_PROGRAM = re.compile(
    r"executable file not found|no such file or directory|not a directory|exec format error|permission denied"
    r"|unable to find user|no matching entries in passwd file",
    re.IGNORECASE,
)
"""Messages of a container runtime for which the template is to blame: every node would give the same message."""
_FATAL_CODES = (ExitCode.CONFIG_ERROR, ExitCode.DATA_ERROR, ExitCode.DIVERGED, ExitCode.DO_NOT_RESTART)


def ended(view: View) -> Fault | None:
    """Return the fault of pods that ended, vanished or are being deleted before their ranks were done. This is
    proof, so there is no wait. Return None if there is no such pod."""
    found: list[tuple[int, Cause, PodRecord | None]] = []
    going: list[tuple[int, Cause, PodRecord | None]] = []
    for slot in sorted(view.members):
        pod, agent = view.pods[slot], view.agents[slot]
        if (
            view.round_is_open
            and agent is not None
            and agent.round == view.status.round
            and (agent.done or agent.saved)
        ):
            continue  # The others may still be at work.
        if pod is None:
            if view.round_is_open:  # The round opened with all pods there, so this one has vanished.
                found.append((slot, Cause.EVICTED, None))
        elif pod.rejected and not view.round_is_open:
            continue  # This is no failure: see `node_rejection`.
        elif pod.phase in ENDED:
            found.append((slot, _cause(pod), pod))
        elif pod.deleting:
            cause = Cause.NODE_LOST if pod.node_lost else Cause.EVICTED
            (going if drain.saves_first(view, slot) else found).append((slot, cause, pod))
    if not found:
        return None
    found += going
    # All pods that ended are replaced together. A pod that ended by itself explains more than one that was removed, so
    # it comes first.
    found.sort(key=lambda item: (item[1] in _FREE, item[0]))
    slot, cause, pod = found[0]
    said = _last_words(view, pod) if pod is not None else None
    if said is not None and cause is Cause.AGENT_LOST:
        cause = said.cause
    return of_pods(
        view,
        cause,
        _words(slot, pod, said, len(found)),
        tuple(slot for slot, _, _ in found),
        pod,
        free=pod is None or pod.deleting or pod.disruption != "",
        fatal=cause in FATAL,
        said=said,
    )


def replaced(view: View) -> Fault | None:
    """Return the fault of a pod of the round that was replaced by another one of the same name. It is unknown which
    pod that is, and no pod must be replaced: the next round starts with all of them."""
    of_slot = {slot: pod for slot in view.members if (pod := view.pods[slot]) is not None}
    if not round_pod_identity.differ(view.status, view.members, of_slot):
        return None
    words = f"a pod of round {view.status.round} was deleted, and another pod has its name now"
    return Fault(Cause.EVICTED, words, (), free=True, step=view.highest_step())


def _cause(pod: PodRecord) -> Cause:
    if pod.disruption:
        return _DISRUPTIONS.get(pod.disruption, Cause.EVICTED)
    if pod.reason in _REASONS:
        return _REASONS[pod.reason]
    if pod.reason in _NOT_STARTED and not pod.deleting:
        # Without a known reason the container runtime of the node is more likely to blame, and another node may work.
        return Cause.CONFIG_ERROR if _NO_PROGRAM.search(pod.message) else Cause.REFUSED
    if pod.reason.startswith("OutOf"):  # OutOfcpu, OutOfnvidia.com/gpu: as UnexpectedAdmissionError.
        return Cause.REFUSED
    if pod.exit_code == ExitCode.SAVED:
        return Cause.PREEMPTED  # It was told to end, saved and ended.
    if pod.deleting:
        return Cause.EVICTED  # Its exit code does not matter.
    if pod.exit_code in _FATAL_CODES:
        return EXIT_CODES[pod.exit_code]
    return Cause.AGENT_LOST


def _last_words(view: View, pod: PodRecord) -> Verdict | None:
    """Return the verdict that the agent wrote before it ended, if it is a cause in this round. Verdicts of earlier
    rounds are answered already."""
    said = termination_message.parse(pod.message)
    return said if said is not None and said.round == view.status.round and not said.cascade else None


def _words(slot: int, pod: PodRecord | None, said: Verdict | None, count: int) -> str:
    if pod is None:
        words = f"the pod of slot {slot} is gone"
    elif pod.phase in ENDED:
        code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
        message = said.message if said is not None else "" if termination_message.parse(pod.message) else pod.message
        why = ": ".join(part for part in (pod.reason, message) if part)
        deleted = " after it was deleted" if pod.deleting and not pod.disruption else ""
        words = f"pod {pod.name} ended{code}{deleted}" + (f": {why}" if why else "")
    else:
        words = f"pod {pod.name} is being deleted" + (f" ({pod.disruption})" if pod.disruption else "")
    return words if count == 1 else f"{words} (and {count - 1} more)"
