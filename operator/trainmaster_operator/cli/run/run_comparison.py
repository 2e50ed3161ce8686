"""Compares two runs of one job, one of them with kills: finds the first step and the first states that differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainmaster_operator.cli.output_folder import DIGESTS, METRICS

Other = tuple[str, str | None]  # (type, digest).


@dataclass(frozen=True)
class Record:
    """The digests of one rank's states at one moment."""

    rank: int
    step: int
    round: int
    restored: bool  # True: before the first step of a round. False: after `step`.
    held: Mapping[str, str]
    others: Mapping[str, Other] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """What a run wrote. `records` and `losses` [(step, round, loss)] are in the order in which they were written."""

    records: list[Record]
    losses: list[tuple[int, int, Any]]

    def first_round(self) -> int:
        return min((r.round for r in self.records), default=0)


@dataclass(frozen=True)
class Difference:
    """The first difference of two runs. `held`: states that differ, with the ranks on which they do. `losses`:
    (without kills, with kills) if they differ."""

    step: int
    round: int
    restored: bool
    held: dict[str, list[int]] = field(default_factory=dict)
    losses: tuple[Any, Any] | None = None
    resumed: int | None = None  # The step from which that round resumed; None if nothing had failed yet.
    # Variable -> type: not in a checkpoint, and different there.
    suspects: dict[str, str] = field(default_factory=dict)
    # Variable -> type: not in a checkpoint, and impossible to compare.
    unknown: dict[str, str] = field(default_factory=dict)
    unseeded: tuple[str, ...] = ()  # States that differed from the start.


def read(out: Path) -> Run:
    """Return what a run wrote into its output folder."""
    records = []
    for file in sorted((out / DIGESTS).glob("rank-*.jsonl")):
        rank = int(file.stem[len("rank-") :])
        for line in _lines(file):
            others = {name: (kind, digest) for name, (kind, digest) in line["others"].items()}
            records.append(Record(rank, line["step"], line["round"], line["at"] == "restored", line["held"], others))
    losses = [(m["step"], m["round"], m["loss"]) for m in _lines(out / METRICS) if m.get("loss") is not None]
    return Run(records, losses)


def compare(calm: Run, killed: Run, tolerance: float = 0.0) -> Difference | None:
    """Return the first difference; None if there is none. With a (relative) tolerance only losses are compared."""
    found = [_losses(calm, killed, tolerance)]
    unseeded = _unseeded(calm, killed)
    if not tolerance:
        found.append(_states(calm, killed, unseeded))
    differences = [difference for difference in found if difference is not None]
    if not differences:
        return None
    first = min(differences, key=_moment)
    same = [d for d in differences if _moment(d)[:2] == _moment(first)[:2] and d.restored == first.restored]
    return _explained(calm, killed, replace(_merged(same), unseeded=tuple(sorted(unseeded))))


def _unseeded(calm: Run, killed: Run) -> set[str]:
    """Return the states that differed at the start, such as a random generator that is neither seeded nor used. A
    later difference of such a state means nothing; a model that used it would differ in its losses."""
    first = {r.rank: r for r in calm.records if r.restored and r.step == 0}
    found = set()
    for record in killed.records:
        wanted = first.get(record.rank)
        if record.restored and record.step == 0 and record.round == killed.first_round() and wanted is not None:
            found |= {name for name, digest in record.held.items() if wanted.held.get(name) != digest}
            found |= {name for name, other in record.others.items() if wanted.others.get(name) != other}
    return found


def _states(calm: Run, killed: Run, unseeded: set[str]) -> Difference | None:
    known = _by_moment(calm.records)
    differing: dict[tuple[int, int, bool], dict[str, list[int]]] = {}
    for record in killed.records:
        wanted = known.get((record.rank, record.step, record.restored)) or known.get((record.rank, record.step, False))
        if wanted is None:
            continue
        for name in sorted((wanted.held.keys() | record.held.keys()) - unseeded):
            if wanted.held.get(name) != record.held.get(name):
                moment = (record.round, record.step, not record.restored)
                differing.setdefault(moment, {}).setdefault(name, []).append(record.rank)
    if not differing:
        return None
    round, step, after = first = min(differing)
    return Difference(step, round, not after, held=differing[first])


def _losses(calm: Run, killed: Run, tolerance: float) -> Difference | None:
    wanted = {step: loss for step, _, loss in calm.losses}
    seen = set()
    for step, round, loss in killed.losses:
        seen.add(step)
        if step in wanted and not _equal(wanted[step], loss, tolerance):
            return Difference(step, round, False, losses=(wanted[step], loss))
    missing = sorted(wanted.keys() - seen)
    if missing:
        last = max((round for _, round, _ in killed.losses), default=0)
        return Difference(missing[0], last, False, losses=(wanted[missing[0]], None))
    return None


def _equal(one: Any, other: Any, tolerance: float) -> bool:
    if not tolerance or isinstance(one, str) or isinstance(other, str):
        return bool(one == other)  # NaN is written as a string.
    return bool(abs(one - other) <= tolerance * max(abs(one), abs(other)))


def _explained(calm: Run, killed: Run, found: Difference) -> Difference:
    """Return the difference with the step where the round began, and with what was different there although no
    checkpoint contains it."""
    if found.round <= killed.first_round():
        return found
    known = _by_moment(calm.records)
    suspects: dict[str, str] = {}
    unknown: dict[str, str] = {}
    resumed = None
    for record in killed.records:
        if record.round != found.round or not record.restored:
            continue
        resumed = record.step
        wanted = known.get((record.rank, record.step, False)) or known.get((record.rank, record.step, True))
        for name, (kind, digest) in record.others.items():
            before = wanted.others.get(name) if wanted is not None else None
            if digest is None:
                unknown[name] = kind
            elif before is not None and before[1] != digest and name not in found.unseeded:
                suspects[name] = kind
    return replace(found, resumed=resumed, suspects=suspects, unknown=unknown)


def _by_moment(records: Iterable[Record]) -> dict[tuple[int, int, bool], Record]:
    return {(record.rank, record.step, record.restored): record for record in records}


def _moment(difference: Difference) -> tuple[int, int, bool]:
    return (difference.round, difference.step, not difference.restored)


def _merged(same: list[Difference]) -> Difference:
    losses = next((d.losses for d in same if d.losses is not None), None)
    held = next((d.held for d in same if d.held), {})
    return Difference(same[0].step, same[0].round, same[0].restored, held, losses)


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield complete lines. A process that was killed while it wrote may have left a part of a line."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
