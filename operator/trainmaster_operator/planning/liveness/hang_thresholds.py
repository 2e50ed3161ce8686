"""How long a rank may be silent, by phase: learned from the pauses that ranks themselves measure.

A pause is the time between two signs of life of a rank. For each phase three numbers are kept: how many pauses there
were, how long they typically are, and the longest one. The limit is not a multiple of the longest: where pauses differ
much in length, the next longest one may be far longer. The ratio of the longest to the typical pause shows how heavy
the tail is (it grows as count^index, Pareto's law), so the longest of HORIZON times as many pauses is extrapolated, and
the limit is `recovery.hang.factor` times that. Steps of even length get a short limit; a heavy tail gets the limit of
the spec.
"""

from __future__ import annotations

import math

from trainmaster.contract.wire import RankReport, RankState
from trainmaster_operator.planning.facts.computed_once import once
from trainmaster_operator.planning.facts.job_state import Pause
from trainmaster_operator.planning.facts.observation import AgentRecord
from trainmaster_operator.planning.facts.view import View

HORIZON = 1e4

ENOUGH = {"step": 20, "save": 8, "eval": 8}
"""Number of pauses in a phase from which a limit is derived. With fewer pauses, the limit of the spec holds."""

WELL_FOUNDED = 200
"""Number of pauses of this round from which the pauses of earlier rounds are ignored."""

SHORTEST_S = 8.0
"""Shortest limit in seconds, because an event that stops a whole machine for a moment is no hang."""

SCRIPT_SHARE = 0.2
"""Shortest limit for a script, as a share of the limit of the spec: between two steps a script may do anything
without reporting it."""

SLOWER = 1.5
"""If the longest pause of a run comes close to the limit of the spec or exceeds it, the limit is this factor times
that pause."""

MOST = 1e9  # In seconds. An agent may report any number.


@once
def learned(view: View) -> dict[str, Pause]:
    """Return the pauses of this round by phase. While there are few, they are combined with those of earlier rounds."""
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
    """Return the limits of silence for the ranks of this job."""
    return Limits(view)


class Limits:
    """How long ranks may be silent now, in seconds. It is used only for a job whose ranks are watched."""

    def __init__(self, view: View) -> None:
        spec = view.spec.recovery.hang
        self._longest_s = spec.limitSeconds
        # The limit for ranks that are known to do something other than steps.
        self._patience_s = spec.limitSeconds * spec.factor
        known = learned(view)
        self._pauses = {
            name: known[name] for name, enough in ENOUGH.items() if name in known and known[name].count >= enough
        }
        self._shortest = {name: _shortest_s(view, self._unknown(name)) for name in self._pauses}
        self._learned = {
            name: _limit_s(view, pause, self._shortest[name], self._unknown(name))
            for name, pause in self._pauses.items()
        }

    def of(self, agent: AgentRecord, rank: RankReport) -> float:
        """Return the limit of a rank in its phase, in seconds. The start and the first steps of a round have the
        limit of the spec, because code is compiled and caches fill then; ranks report no pauses before these steps
        are over."""
        name = _phase_of(rank)
        return self._learned.get(name, self._unknown(name)) if _is_warm(agent) else self._unknown(name)

    def long_pause(self, agent: AgentRecord, rank: RankReport) -> Pause | None:
        """Return the pauses whose length makes the limit of a rank longer than the shortest possible one; None if its
        limit has another reason."""
        name = _phase_of(rank)
        longer = _is_warm(agent) and self._learned.get(name, 0.0) > self._shortest.get(name, 0.0)
        return self._pauses[name] if longer else None

    @property
    def patience_s(self) -> float:
        """The limit in seconds for a rank whose stack changes."""
        return self._patience_s

    def _unknown(self, name: str) -> float:
        return self._patience_s if name == "eval" else self._longest_s


def _phase_of(rank: RankReport) -> str:
    return "step" if rank.state is RankState.STOPPED else rank.phase.lower()


def _is_warm(agent: AgentRecord) -> bool:
    """Return whether the first steps of the round are over."""
    return _number(agent.pauses.get("step"), 0) > 0


def _shortest_s(view: View, longest_s: float) -> float:
    return max(SHORTEST_S, 4 * view.interval_s, SCRIPT_SHARE * longest_s if view.scripted else 0.0)


def _limit_s(view: View, pause: Pause, shortest_s: float, longest_s: float) -> float:
    limit = max(shortest_s, view.spec.recovery.hang.factor * pause.longest * HORIZON ** tail_index(pause))
    return float(max(min(limit, longest_s), SLOWER * pause.longest))


def tail_index(pause: Pause) -> float:
    """Return how heavy the tail of the pauses is. 0: all pauses are alike. 1/a: the tail is that of a Pareto
    distribution with index a. The result is at most 1; above it there would be no mean."""
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
    """Return an agent's four numbers, with 0 for each invalid one. Nearly always all of them are valid."""
    if len(numbers) == 4 and min(numbers) >= 0.0 and sum(numbers) <= MOST:
        return numbers
    return [_number(numbers, at) for at in range(4)]


def _number(numbers: list[float] | None, at: int) -> float:
    """Return one of an agent's numbers, or 0 if it is invalid."""
    value = numbers[at] if numbers is not None and len(numbers) > at else 0.0
    if 0.0 <= value <= MOST:
        return value
    return MOST if MOST < value < math.inf else 0.0
