"""The order of the policies. Each looks at the same view; the first that changes the job's intent decides the pass.

A pass either writes an intent or acts upon the one that stands, never both: whatever write the operator dies at, the
next one reads either the old intent, with the same evidence, or the new one, whose round or incarnation makes that
evidence old.
"""

from __future__ import annotations

from dataclasses import replace

from trainmaster_operator.planning.facts.change import Change
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.observation import Decision, JobSpec, Observation
from trainmaster_operator.planning.facts.view import View, look
from trainmaster_operator.planning.failure import hold, recovery_ladder
from trainmaster_operator.planning.job_conditions import conditions
from trainmaster_operator.planning.lifecycle import (
    elastic,
    finish,
    job_progress,
    job_totals,
    operator_absence,
    revision,
    saving,
    suspend,
)
from trainmaster_operator.planning.liveness import agents, hang, straggler
from trainmaster_operator.planning.placement import gang, gates, node_rejection, nodes, pending, pod_slots, spares
from trainmaster_operator.planning.rounds import coordinated_stop, leaderless_restart, open_round

SHORTEST_WAIT_S = 0.001
"""Status times are milliseconds: a deadline is never missed by less and asked for again at once."""


def plan(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
    """What to do next for one job. `now`: seconds since 1970.

    A leader whose epoch is over, and a job that is being deleted, decide nothing.
    """
    decision = _planned(spec, status, observed, now)
    counted = job_totals.count(status, decision.status)
    return decision if counted is decision.status else replace(decision, status=counted)


def _planned(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
    if observed.epoch < status.leaderEpoch or observed.deleting:
        return Decision(status)
    if not status.phase.finished:
        change = pod_slots.initialise(spec, status, observed, now)
        if change is not None:
            return _written(spec, status, change, observed, now)
    view = look(spec, status, observed, now)
    if status.phase.finished:
        if finish.is_expired(view):
            return Decision(status, delete_job=True)
        deletes, due = finish.leftovers(view)
        return Decision(status, delete=deletes, requeue_after_s=_soonest(due, finish.expiry_s(view)))
    change = _decided(view)
    if change is not None:
        status = _told(view, change.status)
        return _written(spec, view.status, Change(status, change.events), observed, now)
    status = _told(view, status)
    if status is not view.status:
        status = status.model_copy(update={"leaderEpoch": observed.epoch})
    if status.phase is JobPhase.SUSPENDED:
        return Decision(status, delete=suspend.removals(view))
    if status.phase is JobPhase.HELD:
        due = _soonest(finish.overdue_s(view), pod_slots.stale_due_s(view))
        return Decision(status, delete=pod_slots.stale(view), requeue_after_s=due)
    return Decision(
        status,
        create=pod_slots.missing(view),
        delete=pod_slots.stale(view),
        requeue_after_s=_soonest(
            finish.overdue_s(view),
            pending.overdue_s(view),
            gang.release_due_s(view),
            node_rejection.due_s(view),
            pod_slots.missing_due_s(view),
            pod_slots.stale_due_s(view),
            recovery_ladder.cascade_due_s(view),
            agents.lost_due_s(view),
            hang.hang_due_s(view),
            straggler.due_s(view),
            open_round.due_s(view),
            elastic.due_s(view),
            spares.replace_due_s(view),
            nodes.due_s(view),
            leaderless_restart.due_s(view),
        ),
    )


def _decided(view: View) -> Change | None:
    if view.status.phase is JobPhase.SUSPENDED:
        return suspend.resumed(view)
    if view.status.phase is JobPhase.HELD:
        return finish.overdue(view) or hold.released(view)
    change = (
        finish.complete(view)
        or finish.overdue(view)
        or suspend.settled(view)
        or pod_slots.apply_edits(view)
        or elastic.resized(view)
        or pending.hopeless(view)
        or pending.overdue(view)
    )
    if change is not None:
        return change
    change = leaderless_restart.taken_over(view)
    if change is not None or elastic.unheard(view):
        return change
    fault = None if leaderless_restart.unsettled(view) else recovery_ladder.first_cause(view)
    if fault is not None:
        if suspend.wanted(view) and not fault.fatal:
            return suspend.cut_short(view, fault)
        return recovery_ladder.recover(view, fault)
    return (
        hang.suspect(view)
        or straggler.told(view)
        or coordinated_stop.advance(view)
        or open_round.open_round(view)
        or job_progress.first_step(view)
        or saving.noted(view)
        or node_rejection.again(view)
        or pending.noted(view)
        or gang.release(view)
        or elastic.slots(view)
        or spares.replace(view)
        or nodes.relaxed(view)
        or revision.report_edits(view)
    )


def _told(view: View, status: JobState) -> JobState:
    """`status` with what people are told beside the intent."""
    status = operator_absence.update(view, gates.update(view, pending.update(view, job_progress.update(view, status))))
    return revision.update(view, saving.update(view, elastic.update(view, status)))


def _written(spec: JobSpec, before: JobState, change: Change, observed: Observation, now: float) -> Decision:
    status = change.status
    if status.incarnations != before.incarnations and status.avoidNodes == before.avoidNodes:
        status = status.model_copy(update={"avoidNodes": nodes.avoid(spec, status, observed, now)})
    if status.avoidedInVain and status.roundStore:
        status = status.model_copy(update={"avoidedInVain": False})
    if status.round != before.round and status.roundMinor == before.roundMinor:
        status = status.model_copy(update={"roundMinor": 0})  # a leader's own
    status = finish.without_pods(status).model_copy(
        update={
            "leaderEpoch": observed.epoch,
            "observedGeneration": observed.generation,
            "conditions": conditions(status, observed.generation, now),
        }
    )
    return Decision(status, intent=True, events=change.events)


def _soonest(*waits: float | None) -> float | None:
    return max(SHORTEST_WAIT_S, min(known)) if (known := [w for w in waits if w is not None]) else None
