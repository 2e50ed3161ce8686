"""The table of recoveries: what failed, what was done, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainmaster_operator.api.status import Recovery
from trainmaster_operator.cli.news import seconds

PHASES = ("detect", "decide", "drain", "schedule", "start", "fork", "rendezvous", "build", "load", "first_step")


@dataclass(frozen=True)
class Table:
    """Cells as text; `numeric` columns are set to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]


def table(recoveries: Sequence[Recovery]) -> Table:
    """One row each. A phase that no recovery has is no column."""
    seen = {phase for recovery in recoveries for phase in recovery.clock}
    phases = [p for p in PHASES if p in seen] + sorted(seen - set(PHASES))
    first = ("round", "failure", "action", "step", "resumed", "lost")
    rows = []
    for r in recoveries:
        what = f"{r.cause} of rank {r.rank}" if r.rank is not None else f"{r.cause} {r.pod}".strip()
        cells = [str(r.round), what, r.rung.value, str(r.step), _number(r.resumedStep), _number(r.lostSteps)]
        cells += [seconds(r.clock[phase]) if phase in r.clock else "" for phase in phases]
        rows.append((*cells, seconds(r.totalSeconds) if r.totalSeconds is not None else "open"))
    header = (*first, *(phase.replace("_", " ") for phase in phases), "total")
    numeric = (True, False, False, *([True] * (len(header) - 3)))
    return Table(header, tuple(rows), numeric)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
