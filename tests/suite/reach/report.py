"""What `make test-changed` says before it runs anything: what changed, what it reaches, and how long that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.suite.durations import Durations
from tests.suite.kinds import file_of
from tests.suite.reach.choice import FARTHEST, NEIGHBOUR, Choice, Hit, Row

WORKERS = 2
START_S = 8.0
"""Until the first test: both workers import what the tests import."""

_PATH_WIDTH = 56


@dataclass(frozen=True)
class Counts:
    """How many tests each unit has and how long they take, by the record, the durations and the sources."""

    choice: Choice
    known: Durations
    recorded: Mapping[str, int]  # tests of recorded units
    defined: Mapping[str, int]  # test functions of test files

    def tests(self, units: Iterable[str]) -> int:
        """Return how many tests the units have; of files that were never run, how many functions."""
        return sum(self._tests_of(unit) for unit in units)

    def seconds(self, units: Iterable[str]) -> float:
        """Return how long the tests of the units took when they were measured, one after another."""
        wanted = {*units}
        files = {file_of(unit) for unit in wanted}
        fixtures = sum(s for fixture, s in self.known.fixtures.items() if file_of(fixture) in files)
        return fixtures + sum(self._seconds.get(unit, 0.0) for unit in wanted)

    def wall_s(self, units: Iterable[str]) -> float:
        """Return how long a run of the units will take, in seconds."""
        return START_S + self.seconds(units) / WORKERS

    def _tests_of(self, unit: str) -> int:
        if unit in self.recorded:
            return self.recorded[unit]
        return self._measured.get(unit) or self.defined.get(unit, 1)

    def _unit_of(self, test_id: str) -> str:
        return test_id if test_id in self._own else file_of(test_id)

    @cached_property
    def _own(self) -> frozenset[str]:
        return frozenset(unit for units in self.choice.all_units.values() for unit in units)

    @cached_property
    def _measured(self) -> Mapping[str, int]:
        counts = Counter(map(self._unit_of, self.known.tests))
        for file, rest in self.known.rest.items():
            counts[file] += rest.tests
        return counts

    @cached_property
    def _seconds(self) -> Mapping[str, float]:
        seconds = {file: rest.seconds for file, rest in self.known.rest.items()}
        for test, spent in self.known.tests.items():
            unit = self._unit_of(test)
            seconds[unit] = seconds.get(unit, 0.0) + spent
        return seconds


def render(choice: Choice, counts: Counts, base: str) -> str:
    """Return the table of the changed files and the sentences below it."""
    lines = [f"{'changed file':{_PATH_WIDTH}}  {'tests':>5}  chosen by, what changed"]
    lines += [_line(row, counts) for row in choice.rows]
    unit_count = sum(len(units) for units in choice.all_units.values())
    unknown = unit_count - len(choice.recorded)
    lines.append("")
    if choice.recorded:
        lines.append(
            f"The record knows {len(choice.recorded)} of {unit_count} test files and tests recorded by themselves; "
            f"{len(choice.stale)} of them execute or read what has changed between the record and {base}. For these, "
            f"and for the {unknown} that are not in the record, the import graph decides too; `make reach` renews it."
        )
    else:
        lines.append(
            "There is no record of what tests execute: the import graph decides alone. `make reach` makes one."
        )
    if choice.units:
        near = [unit for unit, hit in choice.units.items() if hit.nearness <= NEIGHBOUR]
        first = f"; the {counts.tests(near)} nearest come first and take about {counts.wall_s(near):.0f} s"
        lines.append(
            f"Chosen: {counts.tests(choice.units)} tests of {len(choice.files)} files, "
            f"about {counts.wall_s(choice.units):.0f} s on {WORKERS} workers"
            f"{first if 0 < len(near) < len(choice.units) else ''}."
        )
        lines.append(f"First: {', '.join(nearest(choice.units))}")
        far = [unit for unit, hit in choice.units.items() if hit.nearness == FARTHEST]
        if far and len(far) < len(choice.units):
            lines.append(
                f"Last: {counts.tests(far)} tests, about {counts.seconds(far) / WORKERS:.0f} s, that did nothing with "
                f"it when they were recorded, but have changed since; --likely leaves them out."
            )
    return "\n".join(lines) + "\n"


def nearest(units: Mapping[str, Hit], count: int = 4) -> Sequence[str]:
    """Return the test files of the nearest units."""
    ordered = sorted(units, key=lambda unit: (units[unit].nearness, unit))
    return list(dict.fromkeys(map(file_of, ordered)))[:count]


def as_json(choice: Choice, counts: Counts, base: str) -> dict[str, Any]:
    """Return all that is known about the choice."""
    return {
        "base": base,
        "changed": [
            {"path": row.path, "kind": row.kind, "units": dict(sorted(row.units.items()))} for row in choice.rows
        ],
        "units": {
            unit: {"path": hit.path, "source": hit.source, "nearness": hit.nearness}
            for unit, hit in sorted(choice.units.items())
        },
        "tests": counts.tests(choice.units),
        "seconds": round(counts.wall_s(choice.units), 1) if choice.units else 0,
        "stale": sorted(choice.stale),
    }


def _line(row: Row, counts: Counts) -> str:
    by_source = Counter({source: counts.tests(units) for source, units in _by_source(row).items()})
    sources = ", ".join(
        f"{source} {count}" if len(by_source) > 1 else source for source, count in by_source.most_common()
    )
    path = row.path if len(row.path) <= _PATH_WIDTH else "…" + row.path[1 - _PATH_WIDTH :]
    said = f"{sources}: {row.kind}" if sources else row.kind
    return f"{path:{_PATH_WIDTH}}  {sum(by_source.values()):5}  {said}"


def _by_source(row: Row) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for unit, source in row.units.items():
        found.setdefault(source, []).append(unit)
    return found
