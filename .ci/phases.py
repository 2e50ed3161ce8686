"""Decides which phases CI has, in which order they may start, and what is told about them at the end.

Nothing here starts a process: driver.py does. A phase starts when the phases that it comes after have passed and a
slot is free; phases that the table names first go first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from graphlib import CycleError, TopologicalSorter

SLOTS = 2
"""Heavy phases that run at once. CI has two cores."""


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    ENDED = "ended early"  # because another phase failed, or because CI was told to stop


@dataclass(frozen=True)
class Phase:
    """One command, and when it may run."""

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ()
    """Phases that must have passed before this one starts."""
    heavy: bool = False
    """Keeps a core busy: at most SLOTS of these run at once."""
    background: bool = False
    """Gets only the processor time that phases in the foreground leave: their tests have limits to keep."""
    cleanup: bool = False
    """Runs in any case: after a failure it starts when all other phases have ended."""


PYTHON = ".venv/bin/python"
INSTALL_FRAMEWORKS = (PYTHON, "-m", "tests.frameworks.install", "--smoke")
CLUSTER = ("python3", "-m", "e2e.cluster")
PHASES = (
    Phase("venv", ("make", "venv"), heavy=True),
    Phase("test", ("make", "test"), after=("venv",), heavy=True),
    Phase("verify", ("make", "verify"), after=("venv",), heavy=True, background=True),
    Phase("images", (*CLUSTER, "images", "--template"), heavy=True, background=True),
    Phase("binaries", (*CLUSTER, "binaries"), heavy=True, background=True),
    # Where nothing is cached yet, it builds Horovod for seven minutes, most of them beside the tests.
    Phase("install-frameworks", INSTALL_FRAMEWORKS, after=("venv",), heavy=True, background=True),
    # Several runs at once: it needs both cores, as the tests do.
    Phase("frameworks", ("make", "frameworks", "SMOKE=1"), after=("install-frameworks", "test", "verify"), heavy=True),
    # It takes twenty seconds to start, and when idle a tenth of a core: the tests before it are done sooner without it.
    Phase("cluster", (*CLUSTER, "up"), after=("images", "binaries", "frameworks"), heavy=True),
    Phase("e2e", (PYTHON, "-m", "e2e"), after=("cluster",), heavy=True),
    Phase("cluster-down", (*CLUSTER, "down"), after=("e2e",), cleanup=True),
)


def check(phases: Sequence[Phase]) -> None:
    """Raise ValueError with one sentence if the phases can't all run: a name twice, an unknown one, a circle."""
    names = [phase.name for phase in phases]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two phases have the name {name}")
    for phase in phases:
        for other in phase.after:
            if other not in names:
                raise ValueError(f"phase {phase.name} comes after {other}, but there is no phase {other}")
            if any(p.cleanup for p in phases if p.name == other) and not phase.cleanup:
                raise ValueError(f"phase {phase.name} comes after {other}, which cleans up: nothing may follow that")
    try:
        TopologicalSorter({phase.name: phase.after for phase in phases}).prepare()
    except CycleError as error:
        raise ValueError(f"phases wait for each other: {' after '.join(error.args[1])}") from None


def startable(
    phases: Sequence[Phase], running: Collection[str], done: Mapping[str, Outcome], stopping: bool = False
) -> list[Phase]:
    """Return the phases to start now, in the order of the table.

    `stopping`: something failed, and only phases that clean up still start, once nothing else runs.
    """
    waiting = [phase for phase in phases if phase.name not in running and phase.name not in done]
    if stopping:
        others = [phase for phase in phases if phase.name in running and not phase.cleanup]
        return [] if others else [phase for phase in waiting if phase.cleanup]
    free = SLOTS - sum(phase.heavy for phase in phases if phase.name in running)
    found = []
    for phase in waiting:
        if all(done.get(name) is Outcome.PASSED for name in phase.after) and (free > 0 or not phase.heavy):
            found.append(phase)
            free -= phase.heavy
    return found


def failed(done: Mapping[str, Outcome]) -> bool:
    """Whether a phase has failed or was ended early."""
    return any(outcome is not Outcome.PASSED for outcome in done.values())


@dataclass(frozen=True)
class Span:
    """When a phase ran: seconds since CI began."""

    started_s: float
    ended_s: float

    @property
    def took_s(self) -> float:
        return self.ended_s - self.started_s


def report(phases: Sequence[Phase], done: Mapping[str, Outcome], spans: Mapping[str, Span], total_s: float) -> str:
    """Return the closing lines: one line for each phase, then all durations on one line."""
    width = max(len(phase.name) for phase in phases)
    lines = []
    told = []
    for phase in phases:
        if phase.name not in done:
            lines.append(f"{phase.name:{width}}  did not run")
            continue
        span, outcome = spans[phase.name], done[phase.name].value
        lines.append(f"{phase.name:{width}}  {span.took_s:7.1f} s  from {span.started_s:7.1f} s on  {outcome}")
        told.append(f"{phase.name} {span.took_s:.0f} s")
    complete = all(done.get(phase.name) is Outcome.PASSED for phase in phases)
    lines.append(f"CI {'passed' if complete else 'failed'} in {total_s:.0f} s: {', '.join(told)}")
    return "\n".join(lines)
