"""The revision of a run: what it began with, until a person begins the next one.

A run begins when the job starts, when it is resumed, and when a person asks for a restart. An edit of what all ranks
share waits until then, and conditions tell which fields wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster_operator.planning.facts.change import Change, changed, condition, known_condition, normal, warning
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.observation import JobSpec, Observation
from trainmaster_operator.planning.facts.view import View

PENDING = "RevisionPending"  # the condition that names the edited fields that wait
LOST = "RevisionLost"  # the condition that says that no pod can be made as the others were
REMEMBERED = 3
"""Revisions whose names the status keeps. Older ones are deleted."""

SHOWN = 8  # fields that a message names
MESSAGE = 900  # characters of a condition's message


def begun(spec: JobSpec, status: JobState, observed: Observation) -> dict[str, object]:
    """Return the fields of a run that begins now."""
    name = observed.revision
    names = [name, *(known for known in status.revisions if known != name)] if name else list(status.revisions)
    return {
        "revision": name,
        "revisions": names[:REMEMBERED],
        "restartObeyed": max(spec.restart, status.restartObeyed),
    }


def restart_asked(view: View) -> bool:
    """Whether a person wants the next run at once."""
    return view.spec.restart > view.status.restartObeyed


def may_change(view: View) -> bool:
    """Whether an edit is obeyed at once, since no round of this run has begun."""
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
    """Return `status` with the conditions of this page as they are now; the same if nothing is new. What begins a run
    now has nothing that waits."""
    begins = status.revision != view.status.revision
    status = _with(view, status, PENDING, "" if begins else _waiting(view), "EditsWait", "NothingWaits")
    return _with(view, status, LOST, "" if begins else _lost(view), "Deleted", "Kept")


def named(fields: Sequence[str]) -> str:
    """Return the names of some fields, for people."""
    more = f" and {len(fields) - SHOWN} more" if len(fields) > SHOWN else ""
    return ", ".join(f"spec.{name}" for name in fields[:SHOWN]) + more


def _waiting(view: View) -> str:
    if not view.observed.waiting:
        return ""
    fields, name = named(view.observed.waiting), view.observed.name
    way = f"suspend and resume the job, or run `trainmaster restart {name}`, to begin a run with the new values"
    return f"{fields[: MESSAGE - len(way)]} changed while the run is on; {way}"


def _lost(view: View) -> str:
    if not view.observed.revision_lost:
        return ""
    name = view.status.revision
    why = f"ControllerRevision {name} was deleted and the job or the operator has changed since"
    if not name:
        why = "this run began without a ControllerRevision, under another version of the operator"
    return (
        f"{why}, so no pod can be created as the others of this run were; suspend and resume the job, or run "
        f"`trainmaster restart {view.observed.name}`, to begin a run with the present values"
    )


def _with(view: View, status: JobState, kind: str, words: str, reason: str, otherwise: str) -> JobState:
    known = known_condition(status, kind)
    if not words and (known is None or known.status != "True"):
        return status
    if known is not None and (known.status, known.message) == ("True", words):
        return status
    wanted = condition(status, kind, bool(words), reason if words else otherwise, words, view.now)
    return status.model_copy(update={"conditions": [*(c for c in status.conditions if c.type != kind), wanted]})
