"""How a failure ends a job: the change of its status, and the words that say why no restart would help.

A job also fails without a failure of its ranks, for example at its deadline: see `lifecycle.job_ending`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts import script_step_count
from trainmaster_operator.planning.facts.change import Change, changed, warning
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.job_state import JobPhase, Rung
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.lifecycle import suspend

ADVICE = {
    Cause.CONFIG_ERROR: "the configuration is wrong, so a restart would not help",
    Cause.DATA_ERROR: "the data is wrong, so a restart would not help",
    Cause.DIVERGED: "training diverged, so a restart would not help",
    Cause.FENCED: "another job writes into the same checkpoint directory",
    Cause.CHECKPOINT_FAILED: "all steps are done, but the last one could not be saved",
}

_EXCEPTION = re.compile(r"[A-Za-z_]\w*(?=:)")
"""The type of an exception at the beginning of its message."""


def fail(view: View, fault: Fault, words: str) -> Change:
    """Return the change that ends the job as failed. `words`: the message for events and status."""
    failure = fault.record(view)
    return changed(
        view.status,
        warning("Failed", f"{fault.title}: {words}"[:1024]),
        phase=JobPhase.FAILED,
        completionTime=rfc3339(view.now),
        lastFailure=failure.model_copy(update={"message": words[:1024]}),
        stopAt=None,
        stopBound=False,
        recoveries=suspend.given_up(view.status.recoveries, view.now),
    )


def explain_fatal(fault: Fault) -> str:
    """Return why a failure ends the job at once, whatever its budget."""
    advice = fault.hopeless or ADVICE.get(fault.cause, "a restart would not help")
    return f"{advice}: {fault.message}"


def explain_spent_budget(view: View, fault: Fault, *, is_last_again: bool) -> str:
    """Return that the recovery budget allows no further restart. `is_last_again`: the previous failure was the same."""
    r = view.status.restarts
    tried = f"{r.inPlace} restarts in place, {r.pod} of single pods and {r.full} of all pods"
    again = f"; the previous failure was the same, after the same step {fault.step}" if is_last_again else ""
    words = f"the recovery budget is exhausted after {tried}{again}"
    if is_last_again and fault.cause is Cause.HANG:
        # For other causes, a rule for all failures with these words could be bad advice.
        return f"{words}: {fault.message[:700]}. {_advise_rule(fault)}"
    return f"{words}: {fault.message}"


def explain_divergence(view: View, fault: Fault) -> str:
    """Return that skipping samples did not help, with the number of skipped samples."""
    count = sum(end - first for first, end in view.status.skipped)
    return f"training still diverges although {count} samples are skipped: {fault.message}"


def explain_same_failure(view: View, tried: Sequence[Rung], fault: Fault) -> str:
    """Return why the job ends, with the rule that would end it at the first of these failures."""
    return (
        f"the same failure came {len(tried) + 1} times {_after(view, fault)}, the last time with a new pod, so "
        f"another restart would not help: {fault.message[:700]}. {_advise_rule(fault)}"
    )


def _advise_rule(fault: Fault) -> str:
    """Return the sentence with the rule that ends a job at the first failure of this kind."""
    named = _EXCEPTION.match(fault.message)
    message = f", message: {named[0]}" if named else ""
    return (
        f"To end the job at the first such failure, add the rule {{causes: [{fault.cause.value}]{message}, "
        "action: Fail} to spec.recovery.rules"
    )


def _after(view: View, fault: Fault) -> str:
    """Return after which step a failure came. If the step of the job is not known, the processes' own count is."""
    if script_step_count.is_known(view.status):
        return f"after step {fault.step}"
    return f"after {counted(fault.step, 'step')} since the last start"
