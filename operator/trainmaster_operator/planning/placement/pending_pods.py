"""Pods that should run and do not: what prevents it, reported in condition Scheduled, and how long a job waits for
them."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.change import Change, changed, condition, known_condition, normal, warning
from trainmaster_operator.planning.facts.job_state import Condition, JobPhase, JobState
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.planning.facts.timestamps import since
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.job_conditions import not_known_to_be_scheduled
from trainmaster_operator.planning.lifecycle import job_ending
from trainmaster_operator.planning.liveness import silent_agents
from trainmaster_operator.planning.placement import replaced_pods, scheduling_gates
from trainmaster_operator.planning.placement.gang_release import SCHEDULED

MESSAGE = 900  # Maximum number of characters in a condition's message.
AGENTS_SILENT = "AgentsSilent"
"""The reason of condition Scheduled, whose status is then Unknown, if pods run but the operator does not hear their
agents."""
STANDBY_CUT_OFF = "StandbyCutOff"
"""The same if a script's pod on a lost node is kept, because a standby of the operator may answer its agent."""

_UNKNOWN = (AGENTS_SILENT, STANDBY_CUT_OFF)
_NOT_CREATED = "can't be created"

_CAUSES = {
    **dict.fromkeys(
        (
            *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"),
            *("RegistryUnavailable", "SignatureValidationFailed"),
        ),
        Cause.IMAGE_ERROR,
    ),
    **dict.fromkeys(
        ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"),
        Cause.CONFIG_ERROR,
    ),
    "Unschedulable": Cause.UNSCHEDULABLE,
}
_FIRST = (Cause.IMAGE_ERROR.value, Cause.CONFIG_ERROR.value)
"""Causes that will not pass by themselves; they are reported before causes that may."""


@dataclass(frozen=True)
class Obstacle:
    """What keeps pods from running."""

    reason: str  # The value of a Cause, or the cluster's own word.
    message: str


def obstacle(view: View) -> Obstacle | None:
    """Return the most important reason why pods do not run; None if they run or are starting without a known
    problem."""
    if all(_runs(pod) for pod in view.pods):
        return None
    found = [(_reason(pod), pod) for pod in view.pods if pod is not None and pod.reason and not _runs(pod)]
    found.sort(key=lambda item: (item[0] not in _FIRST, item[1].slot))
    refusal = view.refusal
    absent = sum(1 for pod in view.pods if pod is None)
    if refusal is not None and absent and not (found and found[0][0] in _FIRST):
        return Obstacle(refusal.reason, f"{_count(view, absent)} {_NOT_CREATED}: {refusal.message}"[:MESSAGE])
    if not found:
        return None
    reason, pod = found[0]
    same = sum(1 for other, _ in found if other == reason)
    why = ": ".join(part for part in (pod.reason, pod.message) if part)
    return Obstacle(reason, f"{_count(view, same)} can't run: {pod.name}: {why}"[:MESSAGE])


def _count(view: View, pods: int) -> str:
    return f"{pods} of {view.slots} pods" if view.slots > 1 else "the pod"


def silence(view: View) -> str:
    """Return a sentence if so many agents of running pods are silent that no pod is replaced for it, because the
    reason is more likely between all of them and the operator; else "". It contains no elapsed time, because it would
    then change in each pass."""
    silences = silent_agents.silence_s(view)
    over = [slot for slot, silent_s in enumerate(silences) if silent_s >= view.lost_after_s]
    pod = view.pods[over[0]] if over else None
    if pod is None or not silent_agents.suspect_ourselves(view, silences):
        return ""
    return (
        f"{_count(view, len(over))} run, but the operator does not hear their agents ({pod.name} and others). Usually "
        "a NetworkPolicy forbids connections from these pods to the operator, or the pods cannot resolve its name. The "
        "ranks start when the agents reach the operator"
    )


def _unknown(view: View) -> tuple[str, str]:
    """Return the reason and message of condition Scheduled while no pod has an obstacle; "" as message if there is
    nothing to say."""
    words = replaced_pods.waits_for_a_standby(view)
    return (STANDBY_CUT_OFF, words) if words else (AGENTS_SILENT, silence(view))


def report_obstacle(view: View) -> Change | None:
    """Emit an event as soon as a new obstacle keeps pods from running, or keeps the agents of running pods from the
    operator. `update` writes the condition itself."""
    if view.round_is_open:
        return None
    found = obstacle(view)
    known = known_condition(view.status, SCHEDULED)
    if found is None:
        reason, words = _unknown(view)
        told = known is not None and known.reason == reason
        return changed(view.status, warning(reason, words)) if words and not told else None
    if known is not None and (known.status, known.reason) == ("False", found.reason):
        return None
    event = normal if found.reason == scheduling_gates.GATED else warning
    return changed(view.status, event(found.reason, found.message))


def update(view: View, status: JobState) -> JobState:
    """Return `status` with condition Scheduled as it is now; the same object if nothing is new.

    The condition is true once a round has opened, which needs all pods. An obstacle that has passed stays in it until
    then, with two exceptions: when pods could not be created and now exist, or when agents were not heard and now are,
    no obstacle is known.
    """
    if status.phase.finished or status.phase in (JobPhase.SUSPENDED, JobPhase.HELD):
        return status
    fields: dict[str, object] = {}
    if status.round > 0 and status.roundStore:
        holds, reason, message = True, "AllPodsRun", ""
        if status.released is not None:
            fields["released"] = None
    else:
        found = obstacle(view)
        if found is None:
            return _without_obstacle(view, status)
        holds, reason, message = False, found.reason, found.message
    wanted = condition(status, SCHEDULED, holds, reason, message, view.now)
    if wanted != known_condition(status, SCHEDULED):
        fields["conditions"] = first_of(status, wanted)
    return status.model_copy(update=fields) if fields else status


def _without_obstacle(view: View, status: JobState) -> JobState:
    """Return `status` with the message that agents are silent while they are; and without the message that pods cannot
    be created, or that agents are silent, if that has changed since."""
    known = known_condition(status, SCHEDULED)
    unknown = not_known_to_be_scheduled(status.observedGeneration, view.now)
    if known is not None and known.status == unknown.status:
        unknown = unknown.model_copy(update={"lastTransitionTime": known.lastTransitionTime})
    reason, words = _unknown(view)
    if words:
        unknown = unknown.model_copy(update={"reason": reason, "message": words[:MESSAGE]})
    elif known is None or (known.reason not in _UNKNOWN and not _have_been_created(view, known)):
        return status
    return status if unknown == known else status.model_copy(update={"conditions": first_of(status, unknown)})


def _have_been_created(view: View, known: Condition) -> bool:
    """Return whether all pods exist although the condition still says that they cannot be created."""
    told = known.status == "False" and _NOT_CREATED in known.message
    return told and view.observed.refusal is None and all(pod is not None for pod in view.pods)


def first_of(status: JobState, wanted: Condition) -> list[Condition]:
    """Return the conditions with `wanted`, which is Scheduled, before all others."""
    return [wanted, *(c for c in status.conditions if c.type != SCHEDULED)]


def fail_if_never_startable(view: View) -> Change | None:
    """Fail the job if its pods would be refused each time and the job itself is to blame, not a quota or a policy."""
    refusal = view.refusal
    if refusal is None or not refusal.fatal or view.round_is_open:
        return None
    return job_ending.failed(view, refusal.reason, refusal.message)


def fail_after_pending_deadline(view: View) -> Change | None:
    """Fail the job when its pods have not all run within pendingDeadlineSeconds."""
    due = overdue_s(view)
    if due is None or due > 0:
        return None
    found = obstacle(view)
    words = f"the pods did not all run within pendingDeadlineSeconds ({view.spec.pendingDeadlineSeconds:g} s)"
    if found is None:
        return job_ending.failed(view, "DeadlineExceeded", f"{words}: {_starting(view)}")
    return job_ending.failed(view, found.reason, f"{words}: {found.message}")


def overdue_s(view: View) -> float | None:
    """Return the seconds until pendingDeadlineSeconds is over; None if no deadline runs."""
    limit = view.spec.pendingDeadlineSeconds
    if limit is None or view.round_is_open or all(_runs(view.pods[slot]) for slot in view.members):
        return None
    if scheduling_gates.hold(view):
        return None
    waited = since(view.status.roundOpenedAt or view.status.startTime, view.now)
    return limit - min(waited, scheduling_gates.since_lifted_s(view.status, view.now))


def _starting(view: View) -> str:
    """Return a sentence about pods without a known obstacle. Volumes that cannot be mounted, for example, appear
    only in the pod's own events."""
    pod = next((pod for pod in view.pods if not _runs(pod)), None)
    if pod is None:
        return "some pods do not exist yet"
    return f"{pod.name} is still starting; `kubectl describe pod {pod.name}` shows what it waits for"


def _runs(pod: PodRecord | None) -> bool:
    return pod is not None and pod.phase not in ("Pending", "Unknown")


def _reason(pod: PodRecord) -> str:
    cause = _CAUSES.get(pod.reason)
    return cause.value if cause is not None else pod.reason
