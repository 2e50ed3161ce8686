"""The order of the policies. All of them read the same view; the first one that changes the intent decides the pass.

A pass either writes an intent or acts on the present one, never both. If the operator dies at any write, the next one
reads either the old intent with the same evidence, or the new intent, whose round or incarnation makes that evidence
obsolete.
"""

from __future__ import annotations

from dataclasses import replace

from trainmaster_operator.planning.facts.change import Change
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.observation import Decision, JobSpec, Observation
from trainmaster_operator.planning.facts.view import View, look
from trainmaster_operator.planning.failure import first_cause, hold, recovery_ladder
from trainmaster_operator.planning.job_conditions import conditions
from trainmaster_operator.planning.lifecycle import (
    checkpoint_conditions,
    elastic_resize,
    finished_job_cleanup,
    goodput,
    job_beginning,
    job_ending,
    job_progress,
    job_totals,
    operator_absence,
    revision,
    suspend,
)
from trainmaster_operator.planning.liveness import hang, silent_agents, straggler
from trainmaster_operator.planning.placement import (
    avoided_nodes,
    gang_release,
    node_rejection,
    pending_pods,
    pods_to_create,
    replaced_pods,
    scheduling_gates,
    spare_pods,
)
from trainmaster_operator.planning.rounds import coordinated_stop, leaderless_restart, open_round

SHORTEST_WAIT_S = 0.001
"""Shortest wait in seconds until the next pass. Times in the status are whole milliseconds, so a shorter wait could
come too early and be repeated at once."""


def plan(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
    """Decide what to do next for one job. `now`: seconds since 1970.

    A leader whose epoch is over decides nothing, and nothing is decided for a job that is being deleted.
    """
    decision = _plan(spec, status, observed, now)
    counted = job_totals.count(status, decision.status)
    return decision if counted is decision.status else replace(decision, status=counted)


def _plan(spec: JobSpec, status: JobState, observed: Observation, now: float) -> Decision:
    if observed.epoch < status.leaderEpoch or observed.deleting:
        return Decision(status)
    if not status.phase.finished:
        change = job_beginning.initialise(spec, status, observed, now)
        if change is not None:
            return _write_intent(spec, status, change, observed, now)
    view = look(spec, status, observed, now)
    if status.phase.finished:
        if finished_job_cleanup.is_expired(view):
            return Decision(status, delete_job=True)
        deletes, due = finished_job_cleanup.leftovers(view)
        return Decision(status, delete=deletes, requeue_after_s=_soonest(due, finished_job_cleanup.expiry_s(view)))
    change = _decide(view)
    if change is not None:
        status = goodput.at_failure(view, _apply_updates(view, change.status))
        return _write_intent(spec, view.status, Change(status, change.events), observed, now)
    status = _apply_updates(view, status)
    if status is not view.status:
        status = status.model_copy(update={"leaderEpoch": observed.epoch})
    if status.phase is JobPhase.SUSPENDED:
        return Decision(status, delete=suspend.removals(view))
    if status.phase is JobPhase.HELD:
        due = _soonest(job_ending.overdue_s(view), replaced_pods.stale_due_s(view))
        return Decision(status, delete=replaced_pods.stale(view), requeue_after_s=due)
    creates = pods_to_create.missing(view)
    if creates and view.status.leaderEpoch < observed.epoch:
        # An earlier leader may still run, write newer incarnations and create their pods beside these. Once the status
        # has this leader's epoch, the API server refuses what the earlier one planned for an older version of the job.
        return _write_intent(spec, view.status, Change(status), observed, now)
    return Decision(
        status,
        create=creates,
        delete=replaced_pods.stale(view),
        requeue_after_s=_soonest(
            job_ending.overdue_s(view),
            pending_pods.overdue_s(view),
            gang_release.release_due_s(view),
            node_rejection.due_s(view),
            pods_to_create.missing_due_s(view),
            replaced_pods.stale_due_s(view),
            first_cause.cascade_due_s(view),
            silent_agents.lost_due_s(view),
            hang.hang_due_s(view),
            straggler.due_s(view),
            open_round.due_s(view),
            elastic_resize.due_s(view),
            spare_pods.replace_due_s(view),
            avoided_nodes.due_s(view),
            leaderless_restart.due_s(view),
        ),
    )


def _decide(view: View) -> Change | None:
    """Return the change of the first policy that wants one; None if no policy does."""
    if view.status.phase is JobPhase.SUSPENDED:
        return suspend.resume(view)
    if view.status.phase is JobPhase.HELD:
        return job_ending.fail_after_deadline(view) or hold.release(view)
    change = (
        job_ending.complete(view)
        or job_ending.fail_after_deadline(view)
        or suspend.suspend_when_saved(view)
        or job_beginning.apply_edits(view)
        or elastic_resize.resize_round(view)
        or pending_pods.fail_if_never_startable(view)
        or pending_pods.fail_after_pending_deadline(view)
    )
    if change is not None:
        return change
    change = leaderless_restart.adopt_granted_rounds(view)
    if change is not None or elastic_resize.has_unheard_pods(view):
        return change
    fault = None if leaderless_restart.is_unsettled(view) else first_cause.find_first_cause(view)
    if fault is not None:
        if suspend.is_wanted(view) and not fault.fatal:
            return suspend.cut_short(view, fault)
        return recovery_ladder.recover(view, fault)
    return (
        hang.suspect(view)
        or straggler.report_straggler(view)
        or coordinated_stop.advance(view)
        or open_round.open_round(view)
        or job_progress.record_first_step(view)
        or checkpoint_conditions.report_save_problem(view)
        or node_rejection.replace_rejected_pods(view)
        or pending_pods.report_obstacle(view)
        or gang_release.release(view)
        or elastic_resize.resize_slots(view)
        or spare_pods.replace(view)
        or avoided_nodes.relax_avoidance(view)
        or revision.report_edits(view)
    )


def _apply_updates(view: View, status: JobState) -> JobState:
    """Return `status` with progress, sizes and conditions as they are now. The intent is not changed."""
    status = operator_absence.update(
        view, scheduling_gates.update(view, pending_pods.update(view, job_progress.update(view, status)))
    )
    return revision.update(view, checkpoint_conditions.update(view, elastic_resize.update(view, status)))


def _write_intent(spec: JobSpec, before: JobState, change: Change, observed: Observation, now: float) -> Decision:
    status = change.status
    if status.incarnations != before.incarnations and status.avoidNodes == before.avoidNodes:
        status = status.model_copy(update={"avoidNodes": avoided_nodes.avoid(spec, status, observed, now)})
    if status.avoidedInVain and status.roundStore:
        status = status.model_copy(update={"avoidedInVain": False})
    if status.round != before.round and status.roundMinor == before.roundMinor:
        status = status.model_copy(update={"roundMinor": 0})  # The leader opens this round itself.
    status = finished_job_cleanup.without_pods(status).model_copy(
        update={
            "leaderEpoch": observed.epoch,
            "observedGeneration": observed.generation,
            "conditions": conditions(status, observed.generation, now),
        }
    )
    return Decision(status, intent=True, events=change.events)


def _soonest(*waits: float | None) -> float | None:
    return max(SHORTEST_WAIT_S, min(known)) if (known := [w for w in waits if w is not None]) else None
