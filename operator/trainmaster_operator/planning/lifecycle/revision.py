"""The revision of a run: the spec with which it began, until a person begins the next run.

A run begins when the job starts, when it is resumed, and when a person asks for a restart. An edit of what all ranks
share waits until then, and conditions name the fields that wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster_operator.planning.facts.change import Change, changed, condition, known_condition, normal, warning
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.observation import JobSpec, Observation
from trainmaster_operator.planning.facts.view import View

PENDING = "RevisionPending"  # The condition that names the edited fields that wait.
LOST = "RevisionLost"  # The condition that says that no further pod can be created like the others of the run.
REMEMBERED = 3
"""Number of revisions whose names the status keeps. Older ones are deleted."""

SHOWN = 8  # Maximum number of fields that a message names.
MESSAGE = 900  # Maximum number of characters in a condition's message.


def begun(spec: JobSpec, status: JobState, observed: Observation) -> dict[str, object]:
    """Return the fields of the status for a run that begins now.

    Micro-batches that were made smaller for the previous run stay so if the new run is equal. If it is not, a person
    has edited what they depend on, such as the batch, the model or the devices: the new run begins with what the spec
    says. If its devices have too little memory, it learns that again, without using the budget.
    """
    name = observed.revision
    edited = status.revision != "" and name != status.revision
    names = [name, *(known for known in status.revisions if known != name)] if name else list(status.revisions)
    return {
        "revision": name,
        "revisions": names[:REMEMBERED],
        "restartObeyed": max(spec.restart, status.restartObeyed),
        "microDivisor": 1 if edited else status.microDivisor,
    }


def restart_asked(view: View) -> bool:
    """Return whether a person has asked for a restart that has not begun yet."""
    return view.spec.restart > view.status.restartObeyed


def may_change(view: View) -> bool:
    """Return whether an edit applies at once, because no round of this run has begun."""
    status = view.status
    return not view.round_is_open and (status.round == 0 or status.phase is JobPhase.PENDING)


def report_edits(view: View) -> Change | None:
    """Emit an event when an edit begins to wait, or when the revision is found to be lost."""
    for kind, words in ((PENDING, _waiting(view)), (LOST, _lost(view))):
        known = known_condition(view.status, kind)
        if words and (known is None or (known.status, known.message) != ("True", words)):
            event = warning(kind, words) if kind == LOST else normal(kind, words)
            return changed(view.status, event)
    return None


def update(view: View, status: JobState) -> JobState:
    """Return `status` with conditions RevisionPending and RevisionLost as they are now; the same object if nothing
    is new. For a run that begins now nothing waits."""
    begins = status.revision != view.status.revision
    status = _with(view, status, PENDING, "" if begins else _waiting(view), "EditsWait", "NothingWaits")
    return _with(view, status, LOST, "" if begins else _lost(view), "Deleted", "Kept")


def named(fields: Sequence[str]) -> str:
    """Return the names of some fields as text for people."""
    more = f" and {len(fields) - SHOWN} more" if len(fields) > SHOWN else ""
    return ", ".join(f"spec.{name}" for name in fields[:SHOWN]) + more


def _waiting(view: View) -> str:
    if not view.observed.waiting:
        return ""
    fields, name = named(view.observed.waiting), view.observed.name
    way = f"suspend and resume the job, or run `trainmaster restart {name}`, to begin a run with the new values"
    late = "changed while the job runs and will take effect in the next run"
    return f"{fields[: MESSAGE - len(late) - len(way)]} {late}; {way}"


def _lost(view: View) -> str:
    if not view.observed.revision_lost:
        return ""
    name = view.status.revision
    why = f"ControllerRevision {name} was deleted and the job or the operator has changed since"
    if not name:
        why = "this run began without a ControllerRevision, under another version of the operator"
    return (
        f"{why}, so the operator cannot create pods equal to the other pods of this run; suspend and resume the job, "
        f"or run `trainmaster restart {view.observed.name}`, to begin a run with the present values"
    )


def _with(view: View, status: JobState, kind: str, words: str, reason: str, otherwise: str) -> JobState:
    known = known_condition(status, kind)
    if not words and (known is None or known.status != "True"):
        return status
    if known is not None and (known.status, known.message) == ("True", words):
        return status
    wanted = condition(status, kind, bool(words), reason if words else otherwise, words, view.now)
    return status.model_copy(update={"conditions": [*(c for c in status.conditions if c.type != kind), wanted]})
