"""The ranks in the live picture: one row each, whatever the width of the terminal, and how long their first step takes.

Ranks are read once a second, and the job's status is read at other times. So the step at the top of the picture is the
one that the rows show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainmaster_operator.cli.display.number_words import loss, memory, seconds
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState

Rank = dict[str, Any]

MOST_RANKS = 16
SILENT_S = 2.0
"""Seconds of silence from which the picture shows it."""

_BEFORE_FIRST_STEP = (JobPhase.STARTING, JobPhase.RECOVERING)


def step_of(status: JobState, ranks: Iterable[Rank]) -> int:
    """Return the step of the ranks, or that of the status while no rank has one. Ranks of a script that continued
    from a save may count from 0 in each process; while they train, the status has the step of the job."""
    highest = max((rank["step"] or 0 for rank in ranks), default=0)
    if status.phase is JobPhase.RUNNING and status.roundLastSave:
        return max(highest, status.progress.step)
    return highest or status.progress.step


def first_step_s(status: JobState, ranks: Iterable[Rank]) -> float | None:
    """Return for how many seconds ranks have been in the first step of their round; None if they are not, or not for
    long. Ranks that have completed steps are ignored: they were last heard in a round that is over."""
    if status.phase not in _BEFORE_FIRST_STEP:
        return None
    fresh = (rank for rank in ranks if _in_a_step(rank) and rank.get("loss") is None and not rank.get("step_seconds"))
    lasts = max((rank.get("silent_s") or 0.0 for rank in fresh), default=0.0)
    return lasts if lasts >= SILENT_S else None


def table(job: str, status: JobState, ranks: Sequence[Rank], *, compiles: bool) -> RenderableType:
    """Return a table with a row for each rank. `compiles`: the first step of these ranks begins with torch.compile."""
    shown = ranks[:MOST_RANKS]
    first = "compiling" if compiles else "first step"
    rows = [_cells(job, rank, first if status.phase in _BEFORE_FIRST_STEP else "stepping") for rank in shown]
    # A script may never report a loss, and an empty column is useless.
    columns = [column for column in _COLUMNS if column[0] != "loss" or any(row["loss"].plain for row in rows)]
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title, justify in columns:
        # A name may be cut on a narrow terminal. Numbers are never cut, and no row takes two lines.
        widest = max((row[title].cell_len for row in rows), default=0)
        least = 8 if title == "pod" else max(widest, len(title))
        grid.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", min_width=least)
    for row in rows:
        grid.add_row(*(row[title] for title, _ in columns))
    if len(ranks) > len(shown):
        return Group(grid, Text(f"and {len(ranks) - len(shown)} more ranks", "dim"))
    return grid


_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("rank", "right"),
    ("pod", "left"),
    ("pid", "right"),
    ("state", "left"),
    ("step", "right"),
    ("loss", "right"),
    ("silent", "right"),
    ("memory", "right"),
)


def _cells(job: str, rank: Rank, stepping: str) -> dict[str, Text]:
    state, phase = rank["state"], rank.get("phase") or ""
    steps = _in_a_step(rank)
    words = stepping if steps else phase.lower() if state in ("running", "starting") and phase else state
    style = "green" if steps else "red" if state in ("exited", "stopped") else "yellow"
    silent, waits = rank.get("silent_s") or 0.0, steps and stepping != "stepping"
    taken = rank.get("device_bytes") or rank.get("rss_bytes")
    return {
        "rank": Text(str(rank["rank"])),
        "pod": Text(_pod(job, rank)),
        "pid": Text(str(rank["pid"] or "")),
        "state": Text(words, style),
        "step": Text(str(rank["step"])),
        "loss": Text(loss(str(rank["loss"])) if rank.get("loss") is not None else ""),
        "silent": Text(seconds(silent), "yellow" if waits else "red") if silent >= SILENT_S else Text(),
        "memory": Text(memory(taken) if taken else ""),
    }


def _pod(job: str, rank: Rank) -> str:
    """Return the pod's name, without the job's if that is long: it may have 63 characters, and it is above the
    picture."""
    worker = f"worker-{rank['slot']}-{rank['incarnation']}"
    return worker if len(job) > 20 else f"{job}-{worker}"


def _in_a_step(rank: Rank) -> bool:
    return rank["state"] == "running" and (rank.get("phase") or "").upper() == "STEP"
