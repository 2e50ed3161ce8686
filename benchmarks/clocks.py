"""The operator's own account of recoveries and changes of size: its phase clocks, from a job's status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.record import Case
from benchmarks.stepwatch import Interruption
from trainmaster_operator.cli.display.recovery_tables import PHASES


def closed_clocks(status: dict[str, Any]) -> list[dict[str, float]]:
    return [{**r["clock"], "total": r["totalSeconds"]} for r in status.get("recoveries", []) if r.get("totalSeconds")]


def clock_cases(case: Case, clocks: list[dict[str, float]]) -> list[Case]:
    """One more case per phase of `case`'s recoveries."""
    found = []
    for phase in (*PHASES, "total"):
        if samples := [clock[phase] for clock in clocks if phase in clock]:
            found.append(Case(f"{case.case}, phase {phase}", case.system, "s", samples))
    return found


def interrupted(name: str, samples: Sequence[tuple[Interruption, dict[str, float]]]) -> list[Case]:
    """How long training stood still, how long it was until it went on, and one case per phase."""
    case = Case(name, "trainmaster", "s", [seen.stood_still for seen, _ in samples])
    whole = Case(f"{name}, until it trains again", case.system, "s", [seen.until_training for seen, _ in samples])
    return [case, whole, *clock_cases(case, [clock for _, clock in samples])]


def nth_clock(number: int, status: dict[str, Any]) -> dict[str, float] | None:
    """Of the job's recovery of this number, from 1, once it is over."""
    return next(iter(closed_clocks(status)[number - 1 :]), None)
