"""Slots, incarnations, and the pods that ought to be there."""

from __future__ import annotations

from trainmaster_operator.api.job import Framework
from trainmaster_operator.api.meta import pack_counts
from trainmaster_operator.planning.facts.change import Change, changed, counted, normal
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, WorkersStatus
from trainmaster_operator.planning.facts.observation import JobSpec, Observation, PodRecord, PodToCreate, PodToDelete
from trainmaster_operator.planning.facts.times import rfc3339
from trainmaster_operator.planning.facts.view import ENDED, WORKER, View
from trainmaster_operator.planning.lifecycle import revision
from trainmaster_operator.planning.placement import gang
from trainmaster_operator.planning.rounds import sizes

UNHEARD_S = 15.0
"""How long a kubelet that lives may take to notice a pod. It takes a second or less, and more when it restarts."""

PATIENCE_S = 5.0
"""How long the successor of a pod that storage fences off waits for its kubelet to confirm its end. After that it is
created beside it. The old pod stays in the cluster's books until it has ended, so its devices are given to nobody."""

SCRIPT_FORCE_AFTER_S = 20.0
"""The same for a script's pod on a node that the cluster doesn't hear, since a leader last answered its agent. By then
the agent, which reaches nobody, has ended its ranks: that takes it 18 s at most
(`trainmaster.agent.shell.self_fencing`), and two more are for the end itself."""


class DamagedStatus(Exception):
    """A status that this operator can't have written."""


def initialise(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Change | None:
    """Return the first status of a job; None: it has one. A job that was begun is never begun again. Raises
    DamagedStatus when its status has lost what is known of its pods."""
    if status.incarnations:
        return None
    if status.observedGeneration > 0:
        raise DamagedStatus(
            "status.internal.incarnations is missing although the job was started, so its pods can't be told apart; "
            "restore the status, or delete the job and submit it again"
        )
    size, spares = sizes.wished(spec), spec.workers.spares
    ranks = spec.workers.ranksPerPod
    words = f"{counted(size, 'pod')} with {counted(ranks, 'rank')}{' each' if size > 1 else ''}"
    words += f", and {counted(spares, 'spare')}" if spares else ""
    if spec.checkpoint.folder is None:
        what = "nothing is saved, and a restart begins at step 0"
        if spec.framework is not Framework.TRAINMASTER:
            what = "nothing is saved but what the script saves by itself"
        words += f"; without spec.checkpoint.volume or directory {what}"
    return changed(
        status,
        normal("Accepted", words),
        phase=JobPhase.PENDING,
        startTime=rfc3339(now),
        **revision.begun(spec, status, observed),
        incarnations=pack_counts([0] * (size + spares)),
        workers=WorkersStatus(
            desired=size,
            replicas=size,
            selector=f"trainmaster.dev/job={observed.name},trainmaster.dev/role={WORKER}",
        ),
    )


def apply_edits(view: View) -> Change | None:
    """Begin the run again with what was edited before a round of it: a wrong image is corrected at once. Pods that were
    made are replaced, whether this operator has seen them or not."""
    observed = view.observed
    if not revision.may_change(view):
        return None
    if not observed.waiting and not observed.revision_lost:
        unnamed = view.status.revision == "" and observed.revision != ""
        return changed(view.status, **revision.begun(view.spec, view.status, observed)) if unnamed else None
    what = revision.named(observed.waiting) if observed.waiting else "what the run was to begin with"
    return changed(
        view.status,
        normal("RevisionChanged", f"{what} changed before a round had begun, so all pods are made anew"),
        incarnations=all_raised(view),
        **revision.begun(view.spec, view.status, observed),
    )


def raised(view: View, slots: tuple[int, ...]) -> str:
    """Return the incarnations with those of `slots` replaced by the next."""
    counts = list(view.incarnations)
    for slot in slots:
        counts[slot] += 1
    return pack_counts(counts)


def all_raised(view: View, slots: int | None = None) -> str:
    """Incarnations for a fresh pod in every slot: one number, above every one that was."""
    return pack_counts([next_incarnation(view)] * (view.slots if slots is None else slots))


def next_incarnation(view: View) -> int:
    """Above that of every slot that is or was."""
    return max(*view.incarnations, view.status.workers.nextIncarnation - 1) + 1


def stale(view: View) -> tuple[PodToDelete, ...]:
    """Pods whose incarnation is over. The round of those that had a rank is over too: the same write raised it.

    A pod is removed by force only when it is known to be dead, or to do no harm: it has ended; its node is lost and the
    storage fence holds off what may still run there; or its node took no note of it, and its agent, should it come to
    life after all, is refused. A script's own files have no fence: on a lost node its pod is removed after the
    time in which its agent has ended its ranks.

    A living pod gets the grace period of the template. That is for its sidecars and hooks: its agent, which is refused
    as soon as its incarnation is over, kills its ranks and ends at once.
    """
    deletes = []
    for pod in view.others:
        if pod.slot < view.slots and pod.incarnation > view.incarnations[pod.slot]:
            continue  # from a status newer than this one: the next pass will see it
        ended = pod.phase in ENDED and not pod.lingers
        lost = pod.node_lost and (not view.scripted or _unanswered_s(pod) >= SCRIPT_FORCE_AFTER_S)
        grace: float | None
        if ended or lost or ignored(pod):
            grace = 0.0
        elif pod.deleting:
            continue
        else:
            grace = _own_grace_s(view)
        deletes.append(
            PodToDelete(pod.name, pod.uid, "a newer incarnation takes its place", grace, replaced=pod.slot < view.slots)
        )
    return tuple(deletes)


def _own_grace_s(view: View) -> float | None:
    """None: what the pod's spec says. An API server takes a grace period of 0 for an order to remove the pod without
    waiting for its kubelet, so a template that asks for it gets the shortest one that isn't that."""
    given = (view.spec.workers.template.get("spec") or {}).get("terminationGracePeriodSeconds")
    return 1.0 if given == 0 else None


def ignored(pod: PodRecord) -> bool:
    """Its node doesn't answer, as far as anybody can tell."""
    return pod.unheard_s >= UNHEARD_S


def stale_due_s(view: View) -> float | None:
    """When a pod whose end nobody has confirmed is removed, or waited for no more."""
    waits = [
        SCRIPT_FORCE_AFTER_S - _unanswered_s(pod) if view.scripted else PATIENCE_S - pod.deleting_s
        for pod in view.others
        if pod.deleting
    ]
    return min((wait for wait in waits if wait > 0), default=None)


def _unanswered_s(pod: PodRecord) -> float:
    """Seconds since a leader of the job last answered the pod's agent, which is then sure to know of no later one."""
    return pod.unanswered_s or pod.deleting_s


def missing(view: View) -> tuple[PodToCreate, ...]:
    """Pods to create: never while another pod of the slot is still there, unless storage fences it off and its end
    takes long.

    None for a member while a round is open: it opened with all of them there, so one that is missing has done its part,
    or is a failure that ends the round first. A second pod of one incarnation must not join the ranks of the first.
    """
    if gang.retry_in_s(view) > 0 or _refused_for_s(view) > 0 or view.observed.revision_lost:
        return ()
    return _absent(view)


def missing_due_s(view: View) -> float | None:
    """When pods that can't be created now are tried again."""
    waits = [wait for wait in (gang.retry_in_s(view), _refused_for_s(view)) if wait > 0]
    return max(waits) if waits and _absent(view) else None


def _absent(view: View) -> tuple[PodToCreate, ...]:
    taken = {pod.slot for pod in view.others if not _is_past_waiting(view, pod)}
    return tuple(
        PodToCreate(WORKER, slot, view.incarnations[slot])
        for slot in (view.parked if view.round_is_open else range(view.slots))
        if view.pods[slot] is None and slot not in taken
    )


def _is_past_waiting(view: View, pod: PodRecord) -> bool:
    """Whether a pod that ends need not be waited for: sidecars that use their grace, an agent that does not react, a
    process that waits in the kernel. A script's files have no fence, so its pods are always waited for."""
    return not view.scripted and pod.deleting and pod.deleting_s >= PATIENCE_S


def _refused_for_s(view: View) -> float:
    refusal = view.observed.refusal
    return refusal.again_in_s if refusal is not None else 0.0
