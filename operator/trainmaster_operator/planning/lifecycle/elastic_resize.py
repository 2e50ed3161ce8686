"""Changes of the number of pods of a running job: because a user asks for it, or because no other recovery is left.

A resize consists of three intents. First slots are added, and training continues until their pods are ready. Then all
ranks stop at one step and save (`coordinated_stop`). Then a round of the new size opens. After that, slots that a
smaller job no longer needs are removed.
"""

from __future__ import annotations

from trainmaster_operator.api.compact_lists import pack_counts
from trainmaster_operator.planning.facts.change import Change, changed, condition, known_condition, normal, warning
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, Recovery, Rung
from trainmaster_operator.planning.facts.timestamps import rfc3339, since
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.lifecycle import recovery_clock
from trainmaster_operator.planning.lifecycle.recovery_clock import RECOVERIES
from trainmaster_operator.planning.placement import pods_to_create
from trainmaster_operator.planning.rounds import allowed_sizes, open_round

HEARD_AFTER_S = 3.0
"""Seconds after which a new leader assumes that the agents of all pods have found it."""

AS_WISHED = "SizeAsWished"  # The condition that says why a job does not have the size that was asked for.


def next_size(view: View) -> int | None:
    """Return the number of pods to which a training job is resized now; None if it keeps its size."""
    status = view.status
    trains = status.phase is JobPhase.RUNNING or (status.phase is JobPhase.RESIZING and status.stopAt is not None)
    if not view.round_is_open or not trains:
        return None
    size, wish = len(view.members), allowed_sizes.wanted(view)
    if wish < size:
        return wish
    if wish == size or allowed_sizes.cools_down(view):
        return None
    there = size + sum(1 for slot in view.parked if _starts_at_once(view, slot))
    fits = allowed_sizes.largest(allowed_sizes.legal(view.spec), min(wish, there))
    if fits is None or fits <= size:
        return None
    # Missing pods are worth a wait, so that one resize is enough.
    late = since(status.workers.resizedAt, view.now) >= view.spec.recovery.elastic.waitSeconds
    return fits if fits == wish or late else None


def _starts_at_once(view: View, slot: int) -> bool:
    """Return whether the slot's pod is ready and its ranks can be forked from a process that has imported all
    modules."""
    agent = view.agents[slot]
    return open_round.ready(view, slot) and agent is not None and not agent.warming


def due_s(view: View) -> float | None:
    """Return the seconds until pods may be used that could not be used so far; None if there are none."""
    if not view.round_is_open or allowed_sizes.wanted(view) <= len(view.members):
        return None
    if has_unheard_pods(view):
        return HEARD_AFTER_S - view.observed.leading_s
    wait = view.spec.recovery.elastic.waitSeconds - since(view.status.workers.resizedAt, view.now)
    return next((left for left in (allowed_sizes.cooldown_s(view), wait) if left > 0), None)


def resize_round(view: View) -> Change | None:
    """Begin a round of another size once every rank has stopped for it after a checkpoint. This restart uses no
    budget."""
    status = view.status
    if not _stopped(view) or has_unheard_pods(view):
        return None
    number = status.round + 1
    after = f" after step {status.stopAt}" if status.stopAt is not None else ""
    fields = open_round.reopened(view)
    order = open_round.next_order(view)
    still_s = max((a.saved_s + a.silent_s for a in view.in_round() if a.saved), default=0.0)
    recovery = Recovery(
        round=number,
        cause="Resized",
        rung=Rung.FREE,
        step=view.highest_step(),
        startedAt=rfc3339(view.now - still_s),
        clock=recovery_clock.begun({"detect": still_s}, still_s),
    )
    return changed(
        status,
        normal("Resizing", f"every rank stopped{after} (round {number})"),
        *(allowed_sizes.report_resize(view, len(order)) if order is not None else ()),
        round=number,
        restarts=status.restarts.model_copy(update={"free": status.restarts.free + 1}),
        recoveries=[*status.recoveries, recovery][-RECOVERIES:],
        **fields,
    )


def _stopped(view: View) -> bool:
    return view.status.phase is JobPhase.RESIZING and view.round_is_open and view.all_saved


def has_unheard_pods(view: View) -> bool:
    """Return whether a growing job has running pods whose agents this leader has not heard yet.

    The ranks were stopped for these pods, perhaps by the previous leader. A round without them would be followed by
    another one.
    """
    grows = allowed_sizes.wanted(view) > len(view.members)
    if not grows or not _stopped(view) or view.observed.leading_s >= HEARD_AFTER_S:
        return False
    both = zip(view.pods, view.agents, strict=True)
    heard = (agent is not None and agent.joined for pod, agent in both if pod is not None and pod.phase == "Running")
    return not all(heard)


def shrink(view: View, fault: Fault) -> Change | None:
    """Answer a failure by continuing with fewer pods. Return None if workers.min or the parallelism does not allow
    it."""
    status = view.status
    if status.round == 0:
        return None
    there = sum(1 for slot in range(view.slots) if slot not in fault.slots and open_round.ready(view, slot))
    size = allowed_sizes.largest(allowed_sizes.below(view, len(view.members)), there)
    if size is None:
        return None
    number = status.round + 1
    recovery = Recovery(
        round=number,
        cause=fault.cause.value,
        rung=Rung.SHRINK,
        rank=fault.rank,
        pod=fault.pod,
        step=view.highest_step(),
        startedAt=rfc3339(view.now - fault.age_s),
        clock=recovery_clock.begun(fault.clock, fault.age_s),
    )
    goes_on = f"the job continues with {size} of {len(view.members)} pods (round {number})"
    words = f"{fault.title}: {fault.message[:700]}; {goes_on}"
    return changed(
        status,
        warning("Recovering", words),
        phase=JobPhase.RECOVERING,
        round=number,
        incarnations=pods_to_create.raised(view, fault.slots),
        restarts=status.restarts.model_copy(update={"shrink": status.restarts.shrink + 1}),
        lastFailure=fault.record(view),
        recoveries=[*status.recoveries, recovery][-RECOVERIES:],
        **open_round.smaller(view, size, fault.slots),
    )


def resize_slots(view: View) -> Change | None:
    """Set the number of slots to what the job's size needs: more before it grows, fewer after it has shrunk."""
    status, size, wish = view.status, len(view.members), allowed_sizes.wanted(view)
    fresh = status.roundMap == ""  # No round has opened since the job began, or since all pods were replaced.
    if fresh and status.workers.replicas != wish:
        return _with_slots(view, wish + view.spec.workers.spares, wish)
    needed = allowed_sizes.slots_for(view, size)
    if view.slots < needed:
        return _with_slots(view, needed, size)
    settled = fresh or (view.round_is_open and max(view.members) < needed)
    return _with_slots(view, needed, size) if view.slots > needed and settled else None


def _with_slots(view: View, count: int, size: int) -> Change:
    workers = view.status.workers
    removed = view.incarnations[count:]
    following = max(workers.nextIncarnation, *(n + 1 for n in removed)) if removed else workers.nextIncarnation
    kept = view.incarnations[:count]
    wish = allowed_sizes.wanted(view)
    more = count > view.slots
    words = f"{counted(abs(count - view.slots), 'pod')} {'more' if more else 'fewer'}"
    reason = f"{counted(size, 'pod')} {'runs' if size == 1 else 'run'}"
    if wish > size:
        reason = f"from {size} to {wish} pods; training goes on until they are ready"
    return changed(
        view.status,
        normal("PodsChanged", f"{words}: {reason}"),
        incarnations=pack_counts([*kept, *[following] * (count - len(kept))]),
        workers=workers.model_copy(
            update={"replicas": size, "resizedAt": rfc3339(view.now), "nextIncarnation": following}
        ),
    )


def update(view: View, status: JobState) -> JobState:
    """Return `status` with the legal sizes and, if there is something to say, condition SizeAsWished; the same
    object if nothing is new."""
    if status.phase.finished or status.phase is JobPhase.SUSPENDED:
        return status
    fields: dict[str, object] = {}
    legal, desired = list(allowed_sizes.legal(view.spec)[: allowed_sizes.TOLD]), allowed_sizes.wished(view.spec)
    if (legal, desired) != (status.workers.legalSizes, status.workers.desired):
        fields["workers"] = status.workers.model_copy(update={"legalSizes": legal, "desired": desired})
    known = known_condition(status, AS_WISHED)
    reason, message = _why_not(view, status.workers.replicas)
    if known is None and not reason:
        return status.model_copy(update=fields) if fields else status
    value = "False" if reason else "True"
    if known is None or (known.status, known.message) != (value, message):
        wanted = condition(status, AS_WISHED, not reason, reason or "AsWished", message, view.now)
        fields["conditions"] = [*(c for c in status.conditions if c.type != AS_WISHED), wanted]
    return status.model_copy(update=fields) if fields else status


def _why_not(view: View, size: int) -> tuple[str, str]:
    """Return the reason and the message of the condition if the job does not have the size that was asked for; ("",
    "") if it has."""
    asked, wish = view.spec.workers.replicas, allowed_sizes.wished(view.spec)
    if wish != size and allowed_sizes.wanted(view) != wish:
        words = "the job keeps its size while it runs: without spec.checkpoint, a resize would start it again at step 0"
        return "NoCheckpoints", words
    if size < wish:
        return "PodsMissing", f"the job trains with {size} of {wish} pods"
    if size > wish:
        return "Resizing", f"the job trains with {counted(size, 'pod')} and is to have {wish}"
    if asked != wish:
        return "RoundedDown", allowed_sizes.explain_rounding(view.spec)
    return "", ""
