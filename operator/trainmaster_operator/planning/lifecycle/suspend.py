"""Suspending and resuming: the ranks stop at a step that all of them saved, and the pods are deleted; later new pods
are created. A requested restart is both, one after the other.

What runs in the ranks does not matter here: ranks that cannot stop at a step get SIGTERM when the stop becomes binding.
"""

from __future__ import annotations

from trainmaster_operator.planning.facts.change import Change, changed, normal, warning
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.job_state import JobPhase, Recovery
from trainmaster_operator.planning.facts.observation import PodToDelete
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.lifecycle import revision, stop_messages
from trainmaster_operator.planning.lifecycle.recovery_clock import wall_s
from trainmaster_operator.planning.placement import pods_to_create
from trainmaster_operator.planning.rounds import allowed_sizes, open_round


def is_wanted(view: View) -> bool:
    """Return whether the job is to be suspended, or its common stop is binding and can no longer be cancelled."""
    asked = view.spec.suspend or revision.restart_asked(view)
    return asked or (view.status.phase is JobPhase.SUSPENDING and view.status.stopBound)


def suspend_when_saved(view: View) -> Change | None:
    """Suspend the job once every rank has saved, or at once if no round is open."""
    if not is_wanted(view):
        return None
    if not view.round_is_open:
        return stopped(view, "there was nothing to save")
    if view.all_saved:
        return stopped(view, stop_messages.stopped_words(view))
    return None


def cut_short(view: View, fault: Fault) -> Change:
    """Suspend the job although a failure came first: the job was to stop anyway, so it stops with its last
    checkpoint. Its ranks are fenced off."""
    change = stopped(view, f"without saving, after {fault.title}: {fault.message[:700]}")
    status = change.status
    if view.round_is_open:
        status = status.model_copy(update={"round": status.round + 1, **open_round.forming(view)})
    return Change(
        status.model_copy(update={"lastFailure": fault.record(view)}),
        (warning("SuspendedWithoutSaving", change.events[0].message),),
    )


def resume(view: View) -> Change | None:
    """Replace the pods of a suspended job that is to continue, with the present spec.

    activeDeadlineSeconds counts from 0 again, as for a Kubernetes Job.
    """
    status = view.status
    if view.spec.suspend:
        return None
    size = allowed_sizes.wished(view.spec)
    slots = size + view.spec.workers.spares
    untouched = status.round == 0 and not view.observed.pods and slots == view.slots
    kept = untouched and status.revision == view.observed.revision
    following = status.workers.nextIncarnation if kept else pods_to_create.next_incarnation(view)
    return changed(
        status,
        normal("Resumed", f"the job continues in {counted(slots, 'new pod')}"),
        phase=JobPhase.PENDING,
        **revision.begun(view.spec, status, view.observed),
        incarnations=status.incarnations if kept else pods_to_create.all_raised(view, slots),
        round=status.round + 1 if view.round_is_open else status.round,
        startTime=rfc3339(view.now),
        roundMap="",
        workers=status.workers.model_copy(update={"replicas": size, "shrunkAt": "", "nextIncarnation": following}),
        released=None,
        gates=None,
        restarts=status.restarts.model_copy(update={"free": status.restarts.free + (0 if untouched else 1)}),
        **open_round.forming(view),
    )


def removals(view: View) -> tuple[PodToDelete, ...]:
    """Return every pod of a suspended job, to be deleted with its own grace period."""
    pods = [*(pod for pod in view.pods if pod is not None), *view.others]
    return tuple(PodToDelete(pod.name, pod.uid, "the job is suspended") for pod in pods if not pod.deleting)


def given_up(recoveries: list[Recovery], now: float) -> list[Recovery]:
    """Return the recoveries with those closed that the end of the job or a suspend interrupted."""
    return [
        r if r.totalSeconds is not None else r.model_copy(update={"totalSeconds": wall_s(r, now), "overtaken": True})
        for r in recoveries
    ]


def stopped(view: View, how: str) -> Change:
    """Return the change that sets the phase to Suspended. `how`: the message of the event."""
    return changed(
        view.status,
        normal("Suspended", how),
        phase=JobPhase.SUSPENDED,
        stopAt=None,
        stopBound=False,
        recoveries=given_up(view.status.recoveries, view.now),
    )
