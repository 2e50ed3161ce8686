"""Goodput: time spent on steps that count, out of the wall time since the first step; and what the rest was lost to.

A step counts once: what is done again after a failure is that failure's loss, as the time is in which nothing stepped.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster_operator.api.status import JobStatus, ProgressStatus
from trainmaster_operator.planning.times import rfc3339, since
from trainmaster_operator.planning.view import View

CHECKPOINT = "Checkpoint"  # saving, as far as training stood still for it
EVALUATION = "Evaluation"
OTHER = "Other"

PAUSES = {"save": CHECKPOINT, "eval": EVALUATION}
"""Phases between steps whose time is no step's."""


def at_first_step(view: View) -> dict[str, object]:
    """The fields when a round makes its first step: since the last account nothing was useful."""
    status = view.status
    now = rfc3339(view.now)
    if status.firstStepAt < status.startTime or not status.firstStepAt:
        return {"firstStepAt": now, "accountedAt": now, "usefulSeconds": 0.0, "lost": {}, "goodput": ""}
    return {"accountedAt": now, "lost": _with(status.lost, _down(view))}


def stepped(view: View, status: JobStatus, old: ProgressStatus, new: ProgressStatus) -> dict[str, object]:
    """The fields after steps within one round; nothing if there were none. `status` has this pass's pauses."""
    steps = new.step - old.step
    if steps <= 0 or not status.accountedAt:
        return {}
    elapsed = since(status.accountedAt, view.now)
    paused = [(PAUSES[name], _paused(view, status, name)) for name in PAUSES]
    stepping = max(0.0, elapsed - sum(seconds for _, seconds in paused))
    share = min(1.0, max(0, new.step - max(old.highestStep, old.step)) / steps)
    again = view.status.recoveries[-1].cause if view.status.recoveries else OTHER
    useful = round(status.usefulSeconds + share * stepping, 3)
    wall = since(status.firstStepAt, view.now)
    return {
        "accountedAt": rfc3339(view.now),
        "usefulSeconds": useful,
        "lost": _with(status.lost, [*paused, (again, (1 - share) * stepping)]),
        "goodput": f"{min(1.0, useful / wall):.2f}" if wall > 0 else "",
    }


def _down(view: View) -> Iterator[tuple[str, float]]:
    """Since the last account: each failure's part of the time, up to the one that followed."""
    status = view.status
    under_way = [r for r in status.recoveries if r.totalSeconds is None]
    total = since(status.accountedAt, view.now)
    if not under_way:
        yield OTHER, total
    for number, recovery in enumerate(under_way):
        begun = total if number == 0 else min(total, since(recovery.startedAt, view.now))
        last = number + 1 == len(under_way)
        over = 0.0 if last else min(begun, since(under_way[number + 1].startedAt, view.now))
        yield recovery.cause, begun - over


def _paused(view: View, status: JobStatus, name: str) -> float:
    """Seconds that ranks have spent in this phase since the status that this pass began with."""
    now, before = status.pauses.get(name), view.status.pauses.get(name)
    if now is None:
        return 0.0
    known = before.total if before is not None and view.status.pausesRound == status.pausesRound else 0.0
    return max(0.0, now.total - known)


def _with(lost: dict[str, float], more: Iterator[tuple[str, float]] | list[tuple[str, float]]) -> dict[str, float]:
    sums = dict(lost)
    for cause, seconds in more:
        if seconds >= 0.0005:
            sums[cause] = round(sums.get(cause, 0.0) + seconds, 3)
    return sums
