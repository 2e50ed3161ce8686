"""The tables of recoveries: what failed and what was done about it, and how long each phase took."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainmaster_operator.cli.display.number_words import seconds
from trainmaster_operator.planning.facts.job_state import Recovery, Rung

PHASES = (
    "detect",
    "decide",
    "drain",
    "schedule",
    "start",
    "fork",
    "imports",
    "rendezvous",
    "build",
    "load",
    "first_step",
)
ACTIONS = {
    Rung.IN_PLACE: "restart in place",
    Rung.POD: "new pod",
    Rung.FULL: "all pods new",
    Rung.SHRINK: "fewer pods",
    Rung.FREE: "free restart",
}
MEANINGS = {
    Rung.IN_PLACE: "the pods stay, and the processes of all ranks start again.",
    Rung.POD: "the pod of the failed rank is replaced, and all ranks start again.",
    Rung.FULL: "all pods are replaced.",
    Rung.SHRINK: "the job continues with fewer pods.",
    Rung.FREE: "the ranks start again, and the restart does not count towards a budget.",
}
TIERS = {"ram": "memory", "peer": "peer"}


@dataclass(frozen=True)
class Table:
    """Cells as text. `numeric`: columns that are aligned to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]


def actions(recoveries: Sequence[Recovery]) -> Table:
    """Return a row for each recovery: what failed, what was done, which step the job had reached, from which step it
    continued, where that state was found, how many steps were lost, and how long it took."""
    tiers = any(r.tier in TIERS for r in recoveries)  # Storage is what everybody expects, so it is not shown by itself.
    rows = []
    for r in recoveries:
        who = f" of rank {r.rank}" if r.rank is not None else f" of {_place(r.pod)}" if r.pod else ""
        total = seconds(r.totalSeconds) if r.totalSeconds is not None else "open"
        if r.overtaken:
            total += ", without a step"
        cells = (str(r.round), f"{r.cause}{who}", ACTIONS[r.rung], str(r.step), _number(r.resumedStep))
        tier = (TIERS.get(r.tier, r.tier),) if tiers else ()
        rows.append((*cells, *tier, _number(r.lostSteps), total))
    source = ("source",) if tiers else ()
    header = ("round", "failure", "action", "reached", "resumed", *source, "steps lost", "total")
    return Table(header, tuple(rows), (True, False, False, True, True, *((False,) if tiers else ()), True, True))


def clocks(recoveries: Sequence[Recovery]) -> Table:
    """Return a row for each recovery with the phases of its clock. A phase that no recovery has is no column."""
    phases = phases_of(recoveries)
    rows = tuple(
        (str(r.round), *(seconds(r.clock[phase]) if phase in r.clock else "" for phase in phases)) for r in recoveries
    )
    header = ("round", *(named(phase) for phase in phases))
    return Table(header, rows, (True,) * len(header))


def phases_of(recoveries: Sequence[Recovery]) -> list[str]:
    """Return the phases of the recoveries in the order of time. Unknown phases come last."""
    seen = {phase for recovery in recoveries for phase in recovery.clock}
    return [p for p in PHASES if p in seen] + sorted(seen - set(PHASES))


def named(phase: str) -> str:
    return phase.replace("_", " ")


def _place(pod: str) -> str:
    """Return the role and the slot of a pod: "job-worker-1-0" -> "worker-1"."""
    match = re.search(r"[a-z0-9]+-\d+(?=-\d+$)", pod)
    return match[0] if match else pod


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
