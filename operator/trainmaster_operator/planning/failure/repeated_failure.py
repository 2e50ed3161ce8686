"""Failures that a restart would only repeat: in the same way, before the first step of a round or after the same step.

"The same way" means the same cause, exit code and message, after everything that differs between ranks is removed from
the message. Agents say which last messages come from the program itself (`Recurrence`). Where memory, a device, a
network or a file may be to blame, nothing here applies, not even the third time. That is deliberate, and
docs/failures.md says so under *Failures before the first step*: a mount that comes up late looks like a mistyped path,
so the budget decides both.

The words of two hangs differ, so hangs are the same if the same rank stands at the same line of the script. The reasons
are in docs/decisions/041.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.contract.wire import Cause, Recurrence
from trainmaster_operator.planning.facts import script_step_count
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.job_state import Recovery, Rung
from trainmaster_operator.planning.facts.stack_frames import raised_at
from trainmaster_operator.planning.facts.timestamps import seconds_of, since
from trainmaster_operator.planning.facts.view import View, stepped_to
from trainmaster_operator.planning.failure import failure_budget
from trainmaster_operator.planning.failure.failure_budget import LADDER
from trainmaster_operator.planning.failure.message_comparison import without_what_varies

TWICE = "the job failed twice in this way before its first step, so a third try would not help"
UNSEEN_S = 600.0
"""If no step of the job is known, perhaps because its steps cannot be counted: seconds after its start for which a
round counts as one without a step."""


def is_repeated(view: View, fault: Fault) -> bool:
    """Return whether this failure and the last one are the same and neither round completed a step."""
    return fault.recurs is not Recurrence.UNKNOWN and _two_without_a_step(view) and _came_before(view, fault)


def restarts_in_vain(view: View, fault: Fault) -> list[Rung]:
    """Return what was restarted for this same failure since the job last made progress, the latest at the end.

    The list is empty unless this failure is the last one again. Restarts that no longer count towards the budget, since
    a person has continued the job, are left out. A script whose step after a restart is not known may
    train on without visible progress. So there the exception must come from the same line of the program, too.
    """
    if fault.recurs is Recurrence.UNKNOWN or not is_last_again(view, fault):
        return []
    if not (script_step_count.is_known(view.status) or _came_from_the_same_line(view, fault)):
        return []
    step, spent = view.highest_step(), view.status.spent
    counted = sum(failure_budget.without_progress(spent, fault.cause.value, rung, step) for rung in LADDER)
    rungs: list[Rung] = []
    for recovery in reversed(view.status.recoveries):
        if len(rungs) == counted or not _answered(recovery, fault, step):
            break
        rungs.append(recovery.rung)
    return rungs[::-1]


def is_last_again(view: View, fault: Fault) -> bool:
    """Return whether the last failure had the same cause, exit code and message and came after the same step."""
    last = view.status.lastFailure
    same_step = last is not None and fault.step > 0 and last.step == fault.step
    return same_step and _came_before(view, fault)


def is_certain(tried: Sequence[Rung]) -> bool:
    """Return whether a failure would come again after every restart: a restart did not help, and a new pod did not
    help either."""
    return len(tried) > 1 and any(rung is not Rung.IN_PLACE for rung in tried)


def _came_before(view: View, fault: Fault) -> bool:
    """Return whether the last failure, in an earlier round, had the same cause, exit code and message. The same hang
    is one of the same rank at the same line of the script."""
    last = view.status.lastFailure
    if last is None or last.round >= view.status.round:
        return False
    if fault.cause is Cause.HANG and fault.recurs is not Recurrence.UNKNOWN:
        same = (last.cause, last.rank) == (fault.cause.value, fault.rank)
        return same and _came_from_the_same_line(view, fault)
    way = (fault.cause.value, fault.shell_code, without_what_varies(fault.message))
    return (last.cause, last.exitCode, without_what_varies(last.message)) == way


def _came_from_the_same_line(view: View, fault: Fault) -> bool:
    """Return whether this failure and the last one came from the same line of the same file."""
    last = view.status.lastFailure
    place = raised_at(fault.traceback)
    return last is not None and place[0] != "" and raised_at(last.traceback) == place


def _answered(recovery: Recovery, fault: Fault, step: int) -> bool:
    """Return whether this restart answered a failure with the cause of `fault` and no step beyond `step` was
    completed since. After a hang the round must have completed a step, which shows that its ranks could work."""
    counted = recovery.rung in LADDER
    worked = fault.cause is not Cause.HANG or (recovery.totalSeconds is not None and not recovery.overtaken)
    return counted and worked and recovery.cause == fault.cause.value and recovery.step == step


def _two_without_a_step(view: View) -> bool:
    """Return whether neither this round nor the previous one completed a step. The recovery between them is open
    then, and so is the one before it, if there is any."""
    status, recoveries = view.status, view.status.recoveries
    if not recoveries or recoveries[-1].totalSeconds is not None or not is_early(view):
        return False
    earlier = recoveries[-2] if len(recoveries) > 1 else None
    if status.progress.highestStep:
        return earlier.totalSeconds is None if earlier is not None else False
    began = earlier.startedAt if earlier is not None else status.startTime
    return since(began, seconds_of(recoveries[-1].startedAt)) < UNSEEN_S


def is_early(view: View) -> bool:
    """Return whether no step of this round is known and its ranks can hardly have completed steps that cannot be
    counted."""
    stepped = any(stepped_to(view, agent, rank) > 0 for agent in view.in_round() for rank in agent.ranks)
    known = view.status.progress.highestStep > 0
    return not stepped and (known or since(view.status.roundOpenedAt, view.now) < UNSEEN_S)
