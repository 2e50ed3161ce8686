"""How often a failure is answered: a budget per rung within a window, and per cause without progress."""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster_operator.api.recovery import BudgetSpec
from trainmaster_operator.planning.facts.job_state import Rung, Spent
from trainmaster_operator.planning.facts.times import rfc3339, since

LADDER = (Rung.IN_PLACE, Rung.POD, Rung.FULL)

ENTRIES = 32
"""Entries that the status keeps. Beyond that the oldest are merged, at the later time of the two: never forgotten."""

FREE_WITHOUT_PROGRESS = 3
"""Restarts for the same cause without progress that are free, where the cause lies within the job (a lost store)."""


def affordable(budget: BudgetSpec, spent: Sequence[Spent], cause: str, floor: Rung, step: int, now: float) -> Rung:
    """The lowest rung from `floor` on that the budget allows; `Rung.FREE` when none is left.

    `step`: the job's highest step; spendings below it don't count for the cause.
    """
    for rung in LADDER[LADDER.index(floor) :]:
        within = sum(s.count for s in spent if s.rung is rung and since(s.time, now) < budget.windowSeconds)
        if within < limit(budget, rung) and without_progress(spent, cause, rung, step) < budget.perCause:
            return rung
    return Rung.FREE


def limit(budget: BudgetSpec, rung: Rung) -> int:
    """Return how many restarts of this rung the budget allows."""
    return {Rung.IN_PLACE: budget.inPlace, Rung.POD: budget.pod, Rung.FULL: budget.full}[rung]


def without_progress(spent: Sequence[Spent], cause: str, rung: Rung, step: int) -> int:
    """Restarts at this rung for this cause since the job's step last rose."""
    return sum(s.count for s in spent if s.rung is rung and s.cause == cause and s.step >= step)


def cleared(spent: Sequence[Spent]) -> list[Spent]:
    """As after progress: when a person has looked at the job and lets it go on."""
    return [s.model_copy(update={"step": -1}) for s in spent]


def charge(budget: BudgetSpec, spent: Sequence[Spent], rung: Rung, cause: str, step: int, now: float) -> list[Spent]:
    """The spendings with one more, and without those that can't count any more."""
    kept = [
        s for s in spent if s.step >= step or (s.rung is not Rung.FREE and since(s.time, now) < budget.windowSeconds)
    ]
    kept.append(Spent(time=rfc3339(now), rung=rung, cause=cause, step=step))
    while len(kept) > ENTRIES:
        kept = _merged(kept)
    return kept


def _merged(spent: list[Spent]) -> list[Spent]:
    """One entry less: two of the same rung, cause and, if possible, step become one; the oldest first."""
    for same_step in (True, False):
        seen: dict[tuple[Rung, str, int], int] = {}
        for at, entry in enumerate(spent):
            key = (entry.rung, entry.cause, entry.step if same_step else 0)
            if key in seen:
                older = spent[seen[key]]
                both = {"count": older.count + entry.count, "step": max(older.step, entry.step)}
                return [
                    *spent[: seen[key]],
                    *spent[seen[key] + 1 : at],
                    entry.model_copy(update=both),
                    *spent[at + 1 :],
                ]
            seen[key] = at
    return spent[1:]
