"""What a failure leads to: the recovery ladder.

The rungs are: restart processes in place, replace the pod, replace all pods, shrink, fail. A rule of the job may decide
otherwise. Whatever the rung, one status write holds all of it: the new round or incarnations, the count and the record.
So a failure is counted once wherever the operator dies, and after the write the evidence belongs to an older round and
no longer counts.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trainmaster.contract.wire import Cause
from trainmaster_operator.api.recovery_rules import RuleAction
from trainmaster_operator.planning.facts.change import Change, changed, warning
from trainmaster_operator.planning.facts.fault import NOT_THE_JOBS, Fault
from trainmaster_operator.planning.facts.job_state import JobPhase, Recovery, Restarts, Rung, Spent
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.failure import (
    failure_budget,
    final_failure,
    hold,
    repeated_failure,
    rule_matching,
    smaller_batch_or_skipped_samples,
)
from trainmaster_operator.planning.failure.final_failure import fail
from trainmaster_operator.planning.lifecycle import elastic_resize, recovery_clock
from trainmaster_operator.planning.lifecycle.recovery_clock import RECOVERIES
from trainmaster_operator.planning.placement import pods_to_create
from trainmaster_operator.planning.rounds import open_round

_RUNGS = {
    RuleAction.RESTART_IN_PLACE: Rung.IN_PLACE,
    RuleAction.REPLACE_POD: Rung.POD,
    RuleAction.RESTART_ALL: Rung.FULL,
}


def recover(view: View, fault: Fault) -> Change:
    """Return the answer to a failure as one change: what the job's own rules say or, without a rule, what suits its
    cause."""
    found = rule_matching.first_match(view, fault)
    if found is not None:
        rule, name = found
        change = _by_rule(view, replace(fault, rule=name), rule.action)
        if change is not None:
            return change
    return _by_cause(view, fault)


def _by_rule(view: View, fault: Fault, action: RuleAction) -> Change | None:
    """Return the answer that a rule gives, or None if its action is not possible."""
    if action is RuleAction.FAIL:
        return fail(view, fault, f"{fault.rule} ends the job: {fault.message}")
    if action is RuleAction.HOLD:
        return hold.held(view, fault)
    if action is RuleAction.SHRINK:
        return elastic_resize.shrink(view, fault)
    if action is RuleAction.RESTART_WITHOUT_COUNTING:
        return _free_restart(view, fault)
    if action is RuleAction.SKIP_DATA:
        return _skip(view, fault)
    return _climb(view, fault, max(_RUNGS[action], fault.floor, key=failure_budget.LADDER.index))


def _by_cause(view: View, fault: Fault) -> Change:
    if fault.fatal:
        return fail(view, fault, final_failure.explain_fatal(fault))
    if repeated_failure.is_repeated(view, fault):
        return fail(view, fault, f"{repeated_failure.TWICE}: {fault.message}")
    if _is_free(fault, view.status.spent, view.highest_step()):
        return _free_restart(view, fault)
    if fault.cause is Cause.FENCED:
        return fail(view, fault, f"{final_failure.ADVICE[Cause.FENCED]}: {fault.message}")
    divisor = smaller_batch_or_skipped_samples.halved(view, fault)
    if divisor is not None:
        return _free_restart(view, fault, f"with micro-batches of 1/{divisor} of their size", microDivisor=divisor)
    tried = repeated_failure.restarts_in_vain(view, fault)
    if repeated_failure.is_certain(tried):
        # With fewer pods the data is shared differently, so shrinking may still help where the job allows it.
        shrunk = elastic_resize.shrink(view, fault)
        return shrunk or fail(view, fault, final_failure.explain_same_failure(view, tried, fault))
    if not tried:
        return _climb(view, fault, fault.floor)
    how = "because the restart before ended in the same failure after the same step"
    return _climb(view, fault, max(Rung.POD, fault.floor, key=failure_budget.LADDER.index), how)


def _climb(view: View, fault: Fault, floor: Rung, how: str = "") -> Change:
    """Restart at the lowest rung from `floor` on that the budget allows. If the budget allows none, shrink; if that
    is impossible too, fail."""
    limits, spent, step = view.spec.recovery.budget, view.status.spent, view.highest_step()
    rung = failure_budget.affordable(limits, spent, fault.cause.value, floor, step, view.now)
    if rung is not Rung.FREE:
        return _restart(view, fault, rung, rung, how)
    shrunk = elastic_resize.shrink(view, fault)
    if shrunk is not None:
        return shrunk
    again = repeated_failure.is_last_again(view, fault)
    return fail(view, fault, final_failure.explain_spent_budget(view, fault, is_last_again=again))


def _skip(view: View, fault: Fault) -> Change | None:
    """Restart from the last checkpoint without the samples of the step that diverged, as often as the budget of rung
    inPlace allows."""
    ranges = smaller_batch_or_skipped_samples.skipped(view, fault)
    if ranges is None:
        return None
    limits, step = view.spec.recovery.budget, view.highest_step()
    rung = failure_budget.affordable(limits, view.status.spent, fault.cause.value, Rung.IN_PLACE, step, view.now)
    if rung is not Rung.IN_PLACE:
        return fail(view, fault, final_failure.explain_divergence(view, fault))
    words = f"without samples {fault.samples[0]} to {fault.samples[1] - 1}"
    return _restart(view, fault, rung, rung, words, skipped=ranges)


def _free_restart(view: View, fault: Fault, how: str = "", **fields: object) -> Change:
    return _restart(view, fault, fault.floor, Rung.FREE, how, **fields)


def _restart(view: View, fault: Fault, rung: Rung, charged: Rung, how: str = "", **more: object) -> Change:
    """Return a change to a new round above the old one. It has a store at once if every agent is ready, else it forms
    first.

    `how` and `more`: what else is new, in words and in fields of the status.
    """
    status = view.status
    number = status.round + 1 if status.round else 0
    if fault.cause is Cause.FENCED:
        number = max(number, newer_round(fault.message) + 1)
    fields: dict[str, object]
    if rung is Rung.IN_PLACE:
        fields = open_round.reopened(view)
        what = "the ranks restart in place"
    elif rung is Rung.POD:
        fields = {**open_round.reopened(view, fault.slots), "incarnations": pods_to_create.raised(view, fault.slots)}
        what = "the pod is replaced" if len(fault.slots) == 1 else f"{len(fault.slots)} pods are replaced"
    else:
        fields = {**open_round.forming(view), "roundMap": "", "incarnations": pods_to_create.all_raised(view)}
        what = "all pods are replaced"
    limits, step = view.spec.recovery.budget, view.highest_step()
    what = " ".join(part for part in (what, how, f"as {fault.rule} says" if fault.rule else "") if part)
    recovery = Recovery(
        round=max(1, number),
        cause=fault.cause.value,
        rung=charged,
        rank=fault.rank,
        pod=fault.pod,
        step=step,
        startedAt=rfc3339(view.now - fault.age_s),
        clock=recovery_clock.begun(fault.clock, fault.age_s),
    )
    return changed(
        status,
        warning("Recovering", f"{fault.title}: {fault.message[:700]}; {what} (round {recovery.round})"),
        phase=JobPhase.RECOVERING,
        round=number,
        restarts=_counted(status.restarts, charged),
        spent=failure_budget.charge(limits, view.status.spent, charged, fault.cause.value, step, view.now),
        lastFailure=fault.record(view),
        recoveries=[*status.recoveries, recovery][-RECOVERIES:],
        **fields,
        **more,
    )


def _counted(restarts: Restarts, rung: Rung) -> Restarts:
    return restarts.model_copy(update={rung.value: getattr(restarts, rung.value) + 1})


def _is_free(fault: Fault, spent: list[Spent], step: int) -> bool:
    """Return whether the restart uses no budget, because the job is not responsible. Causes that the job might
    repeat are free only a few times."""
    if fault.free:
        return True
    if fault.cause not in NOT_THE_JOBS:
        return False
    return (
        failure_budget.without_progress(spent, fault.cause.value, Rung.FREE, step)
        < failure_budget.FREE_WITHOUT_PROGRESS
    )


def newer_round(message: str) -> int:
    """Return the highest round that a FENCED verdict names ("round 7 has it"); 0 if it names none."""
    return max((int(n) for n in re.findall(r"\bround (\d{1,9})\b", message)), default=0)
