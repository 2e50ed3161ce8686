"""How often a failure is answered: a budget per rung within a window, and a limit per cause without progress."""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster_operator.api.recovery_spec import BudgetSpec
from trainmaster_operator.planning.facts.job_state import Rung, Spent
from trainmaster_operator.planning.facts.timestamps import rfc3339, since

LADDER = (Rung.IN_PLACE, Rung.POD, Rung.FULL)

ENTRIES = 32
"""Maximum number of entries that the status keeps. Beyond it neighbouring entries are merged. The merged entry has the
later of the two times, so no restart is forgotten too early."""

FREE_WITHOUT_PROGRESS = 3
"""Number of free restarts for the same cause without progress, for causes within the job such as a lost store."""


def affordable(budget: BudgetSpec, spent: Sequence[Spent], cause: str, floor: Rung, step: int, now: float) -> Rung:
    """Return the lowest rung from `floor` on that the budget allows, or `Rung.FREE` if the budget allows none.

    `step`: the job's highest step. Restarts at lower steps do not count for the cause.
    """
    for rung in LADDER[LADDER.index(floor) :]:
        if left(budget, spent, cause, rung, step, now):
            return rung
    return Rung.FREE


def left(budget: BudgetSpec, spent: Sequence[Spent], cause: str, rung: Rung, step: int, now: float) -> int:
    """Return how many restarts at this rung the budget still allows for this cause while the job makes no progress."""
    within = sum(s.count for s in spent if s.rung is rung and since(s.time, now) < budget.windowSeconds)
    of_the_cause = budget.perCause - without_progress(spent, cause, rung, step)
    return max(0, min(limit(budget, rung) - within, of_the_cause))


def next_expiry_s(budget: BudgetSpec, spent: Sequence[Spent], rung: Rung, now: float) -> float | None:
    """Return the seconds until a restart at this rung leaves the window of the budget; None if none is in it."""
    waits = (budget.windowSeconds - since(s.time, now) for s in spent if s.rung is rung)
    return min((wait for wait in waits if wait > 0), default=None)


def limit(budget: BudgetSpec, rung: Rung) -> int:
    """Return the number of restarts at this rung that the budget allows within its window."""
    return {Rung.IN_PLACE: budget.inPlace, Rung.POD: budget.pod, Rung.FULL: budget.full}[rung]


def without_progress(spent: Sequence[Spent], cause: str, rung: Rung, step: int) -> int:
    """Return the number of restarts at this rung for this cause since the job's step last increased."""
    return sum(s.count for s in spent if s.rung is rung and s.cause == cause and s.step >= step)


def cleared(spent: Sequence[Spent]) -> list[Spent]:
    """Return the entries as they are after progress. This is used when a person has looked at the job and lets it
    continue."""
    return [s.model_copy(update={"step": -1}) for s in spent]


def charge(budget: BudgetSpec, spent: Sequence[Spent], rung: Rung, cause: str, step: int, now: float) -> list[Spent]:
    """Return the entries with one more, and without those that can no longer count."""
    kept = [
        s for s in spent if s.step >= step or (s.rung is not Rung.FREE and since(s.time, now) < budget.windowSeconds)
    ]
    kept.append(Spent(time=rfc3339(now), rung=rung, cause=cause, step=step))
    while len(kept) > ENTRIES:
        kept = _merged(kept, step)
    return kept


def _merged(spent: list[Spent], step: int) -> list[Spent]:
    """Return one entry less: two neighbouring entries with the same rung and cause become one.

    If possible, they have the same step, or at least neither is of the present one, `step`. Of these pairs, the one
    with the fewest restarts is merged: if an old entry took up every later one, it would never leave the window.
    """
    before: dict[tuple[Rung, str], int] = {}
    pairs: list[tuple[int, int]] = []
    for at, entry in enumerate(spent):
        kind = (entry.rung, entry.cause)
        if kind in before:
            pairs.append((before[kind], at))
        before[kind] = at
    if not pairs:
        return spent[1:]

    def cost(pair: tuple[int, int]) -> tuple[bool, bool, int]:
        older, newer = (spent[at] for at in pair)
        return older.step != newer.step, max(older.step, newer.step) >= step, older.count + newer.count

    first, second = min(pairs, key=cost)
    older, newer = spent[first], spent[second]
    both = newer.model_copy(update={"count": older.count + newer.count, "step": max(older.step, newer.step)})
    return [both if at == second else entry for at, entry in enumerate(spent) if at != first]
