"""What recoveries took and consisted of, from the stamps that the ranks of a recovery script wrote.

A stamp is a line `monotonic ns, attempt, event, step, ns spent in imports by then`; older scripts leave out the last.
A part ends when the last rank is through it, so the parts of a recovery add up to it:

- restart: from the death until every rank of the attempt that comes back runs its first line: noticing it, ending the
  others, meeting again, forking or executing, and any attempt that fails before that;
- imports: wherever they stand; rendezvous: joining the process group;
- build: model, optimizer, checkpoint; first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

RESTART, IMPORTS = "restart", "imports"
_MILESTONES = {"joined": "rendezvous", "built": "build", "first": "first step"}
PARTS = (RESTART, IMPORTS, *_MILESTONES.values())


class Stamp(NamedTuple):
    rank: int
    at_ns: int
    attempt: int
    event: str
    imports_ns: int


def read(folder: Path, ranks: int) -> list[Stamp]:
    """Return the stamps of all ranks that have written some."""
    found = []
    for rank in range(ranks):
        path = folder / f"stamps-{rank}"
        for line in path.read_text().splitlines() if path.exists() else []:
            at, attempt, event, _, *imports = line.split()
            found.append(Stamp(rank, int(at), int(attempt), event, int(imports[0]) if imports else 0))
    return found


def times(stamps: Iterable[Stamp], ranks: int, kills: int) -> list[float]:
    """Return the seconds of each recovery that came about: from a death to the first step of all ranks.

    A restart that fails is part of the recovery that it delays.
    """
    known = [*stamps]
    return [
        (max(stamp.at_ns for stamp in known if (stamp.attempt, stamp.event) == (attempt, "first")) - death) / 1e9
        for death, attempt in _recoveries(known, ranks, kills)
    ]


def parts(stamps: Iterable[Stamp], ranks: int, kills: int) -> list[dict[str, float]]:
    """Return the seconds of each part (PARTS) of each recovery that came about and has all stamps."""
    known, found = [*stamps], []
    for death, attempt in _recoveries(known, ranks, kills):
        events = {
            event: [s for s in known if s.attempt == attempt and s.event == event] for event in ("begin", *_MILESTONES)
        }
        if any(len(each) != ranks for each in events.values()):
            continue
        last = max(stamp.at_ns for stamp in events["begin"])
        split = {RESTART: last - death, IMPORTS: 0}
        imported = 0
        for event, part in _MILESTONES.items():
            slowest = max(events[event], key=lambda stamp: stamp.at_ns)
            span = slowest.at_ns - last
            imports = min(span, max(0, slowest.imports_ns - imported))
            split[IMPORTS] += imports
            split[part] = span - imports
            last, imported = slowest.at_ns, max(imported, slowest.imports_ns)
        found.append({part: split[part] / 1e9 for part in PARTS})
    return found


def _recoveries(stamps: list[Stamp], ranks: int, kills: int) -> Iterator[tuple[int, int]]:
    """Yield, for each death after which all ranks stepped before the next one, when it was and the attempt of that."""
    for attempt in range(kills):
        death = _death(stamps, attempt)
        if death is None:
            continue
        for later in range(attempt + 1, max(stamp.attempt for stamp in stamps) + 1):
            if sum((stamp.attempt, stamp.event) == (later, "first") for stamp in stamps) == ranks:
                yield death, later
                break
            if _death(stamps, later) is not None:
                break


def _death(stamps: list[Stamp], attempt: int) -> int | None:
    return next((stamp.at_ns for stamp in stamps if stamp.attempt == attempt and stamp.event == "death"), None)
