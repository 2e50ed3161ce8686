"""What silence is to be expected of a rank, by phase: learned from the pauses that ranks themselves measure.

A pause is the time between two of a rank's signs of life. Of each phase three numbers are kept: how many pauses there
were, how long they typically are, and the longest one. The limit is not a multiple of the longest: where pauses are of
very different length, the next record may be a far one. The ratio of the longest to the typical tells how heavy the
tail is (it grows as count^index, Pareto's law), so the longest pause of HORIZON times as many is extrapolated, and the
limit is `recovery.hang.factor` times that. Steps of even length get a short limit, a heavy tail the one of the spec.
"""

from __future__ import annotations

import math

from trainmaster.contract.wire import RankReport, RankState
from trainmaster_operator.planning.facts.job_state import Pause
from trainmaster_operator.planning.facts.observation import AgentRecord
from trainmaster_operator.planning.facts.once import once
from trainmaster_operator.planning.facts.view import View

HORIZON = 1e4

ENOUGH = {"step": 20, "save": 8, "eval": 8}
"""Pauses in a phase before a limit is derived from them; before, the spec's holds."""

WELL_FOUNDED = 200
"""Pauses of this round that need no memory of earlier rounds any more."""

SHORTEST_S = 8.0
"""Limits are never shorter: what stops a whole machine for a moment is no hang..."""

SCRIPT_SHARE = 0.2
"""...and a script's never below this share of the spec's: between two steps it may do anything, for the first time and
without telling anybody."""

SLOWER = 1.5
"""A run whose longest pause comes near to the spec's limit, or is beyond it, gets so many times that pause."""

MOST = 1e9  # seconds: agents may say anything


@once
def learned(view: View) -> dict[str, Pause]:
    """By phase: this round's pauses; while there are few, with what earlier rounds left."""
    known = {}
    for name in ENOUGH:
        told = _merge_pauses(view, name)
        before = view.status.pauses.get(name)
        if told is not None and before is not None and told.count < WELL_FOUNDED:
            told = Pause(
                count=max(told.count, before.count),
                typical=min(told.typical, before.typical) or told.typical,
                longest=max(told.longest, before.longest),
                total=told.total,
            )
        elif told is None and before is not None:
            told = before.model_copy(update={"total": 0.0})
        if told is not None:
            known[name] = told
    return known


@once
def limits(view: View) -> Limits:
    """Return how long the ranks of this job may be silent, computed once in a pass."""
    return Limits(view)


class Limits:
    """How long ranks may be silent now. Only for a job whose ranks are watched."""

    def __init__(self, view: View) -> None:
        spec = view.spec.recovery.hang
        self._longest_s = spec.limitSeconds
        self._patience_s = spec.limitSeconds * spec.factor  # for what is known to do other things than steps
        known = learned(view)
        self._learned = {
            name: _limit_s(view, known[name], self._unknown(name))
            for name, enough in ENOUGH.items()
            if name in known and known[name].count >= enough
        }

    def of(self, agent: AgentRecord, rank: RankReport) -> float:
        """Return for how many seconds a rank may be silent in its phase.

        A start has the spec's limit, and so have the first steps of a round, in which things compile and caches fill:
        ranks tell no pause before they are over.
        """
        name = "step" if rank.state is RankState.STOPPED else rank.phase.lower()
        warm = _number(agent.pauses.get("step"), 0) > 0
        return self._learned.get(name, self._unknown(name)) if warm else self._unknown(name)

    @property
    def patience_s(self) -> float:
        """For a rank whose stack moves."""
        return self._patience_s

    def _unknown(self, name: str) -> float:
        return self._patience_s if name == "eval" else self._longest_s


def _limit_s(view: View, pause: Pause, longest_s: float) -> float:
    shortest = max(SHORTEST_S, 4 * view.interval_s, SCRIPT_SHARE * longest_s if view.scripted else 0.0)
    limit = max(shortest, view.spec.recovery.hang.factor * pause.longest * HORIZON ** tail_index(pause))
    return float(max(min(limit, longest_s), SLOWER * pause.longest))


def tail_index(pause: Pause) -> float:
    """0: all pauses are alike; 1/a: their tail is Pareto's, of index a. Never above 1, where no mean exists."""
    if pause.count < 2 or pause.typical <= 0 or pause.longest <= pause.typical:
        return 0.0
    return min(1.0, math.log(pause.longest / pause.typical) / math.log(pause.count))


def _merge_pauses(view: View, name: str) -> Pause | None:
    """Return the pauses in phase `name` over all agents of this round; None if no agent reports any.

    The longest pause is the longest of all agents. The typical one is the shortest of all, which errs towards patience.
    """
    given = (_numbers(numbers) for agent in view.in_round() if (numbers := agent.pauses.get(name)))
    told = [numbers for numbers in given if numbers[0] > 0]
    if not told:
        return None
    counts, typical, longest, totals = zip(*told, strict=True)
    return Pause(
        count=int(max(counts)),
        typical=round(min(typical), 4),
        longest=round(max(longest), 4),
        total=round(max(totals), 3),
    )


def _numbers(numbers: list[float]) -> list[float]:
    """An agent's four numbers, 0 for each that is none. Nearly always they are what they ought to be."""
    if len(numbers) == 4 and min(numbers) >= 0.0 and sum(numbers) <= MOST:
        return numbers
    return [_number(numbers, at) for at in range(4)]


def _number(numbers: list[float] | None, at: int) -> float:
    """An agent's number, 0 for what is none."""
    value = numbers[at] if numbers is not None and len(numbers) > at else 0.0
    if 0.0 <= value <= MOST:
        return value
    return MOST if MOST < value < math.inf else 0.0
