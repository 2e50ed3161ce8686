"""How long each test takes: what `--record-durations` writes, what the order of tests and the budgets read.

The committed record is `tests/suite/durations.json`. It lists a test by itself from `LISTED_FROM_S` on; the shorter
tests of a file are one number, so that the record stays small and its diffs can be read. The set-up of fixtures that
several tests share is kept apart from the tests: it isn't the fault of the test that happens to run first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.suite.kinds import file_of

ROOT = Path(__file__).parents[2]
COMMITTED = Path(__file__).with_name("durations.json")
LISTED_FROM_S = 0.05


class BadDurations(Exception):
    """A file that is no record of durations. The message names the file and says what is wrong."""


@dataclass(frozen=True)
class Rest:
    """The tests of a file that are too short to be listed: how many they are and how long all of them take."""

    tests: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Durations:
    """Seconds of each listed test, of the other tests of each file, and of each shared fixture."""

    tests: Mapping[str, float] = field(default_factory=dict)
    rest: Mapping[str, Rest] = field(default_factory=dict)
    fixtures: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def files(self) -> frozenset[str]:
        """The files whose tests were measured."""
        return frozenset({*map(file_of, self.tests), *self.rest})

    @property
    def count(self) -> int:
        """How many tests were measured, the unlisted ones included."""
        return len(self.tests) + sum(rest.tests for rest in self.rest.values())

    def without(self, is_left_out: Callable[[str], bool]) -> Durations:
        """Return the record without the listed tests of which the function says so, by their ids."""
        left = {test: spent for test, spent in self.tests.items() if not is_left_out(test)}
        return Durations(left, self.rest, self.fixtures)


def summarise(tests: Mapping[str, float], fixtures: Mapping[str, float]) -> Durations:
    """Return the record of what was measured, in seconds: rounded, and without what is too short to be listed."""
    listed = {test: round(seconds, 2) for test, seconds in tests.items() if seconds >= LISTED_FROM_S}
    short: dict[str, list[float]] = defaultdict(list)
    for test, seconds in tests.items():
        if test not in listed:
            short[file_of(test)].append(seconds)
    return Durations(
        listed,
        {file: Rest(len(all_s), round(sum(all_s), 2)) for file, all_s in short.items()},
        {name: round(seconds, 2) for name, seconds in fixtures.items() if seconds >= LISTED_FROM_S},
    )


def combine(records: Iterable[Durations]) -> Durations:
    """Return one record of runs that measured different tests. Of a fixture measured twice the longer one counts."""
    tests: dict[str, float] = {}
    rest: dict[str, Rest] = defaultdict(Rest)
    fixtures: dict[str, float] = {}
    for record in records:
        tests.update(record.tests)
        for file, more in record.rest.items():
            rest[file] = Rest(rest[file].tests + more.tests, round(rest[file].seconds + more.seconds, 2))
        for name, seconds in record.fixtures.items():
            fixtures[name] = max(seconds, fixtures.get(name, 0.0))
    return Durations(tests, dict(rest), fixtures)


def replace(old: Durations, new: Durations, exists: Callable[[str], bool]) -> Durations:
    """Return `old` with each file that `new` measured taken from `new` alone, and without files that are gone.

    A fixture of a folder's conftest.py is replaced if it was measured again. `exists` tells whether a path relative to
    the repository is there.
    """
    measured = new.files

    def stays(name: str) -> bool:
        return file_of(name) not in measured and exists(file_of(name))

    return Durations(
        {**{test: seconds for test, seconds in old.tests.items() if stays(test)}, **new.tests},
        {**{file: rest for file, rest in old.rest.items() if stays(file)}, **new.rest},
        {**{name: seconds for name, seconds in old.fixtures.items() if stays(name)}, **new.fixtures},
    )


def load(path: Path) -> Durations:
    """Return the record in the file `path`; an empty one if the file isn't there. Raises BadDurations."""
    try:
        found = json.loads(path.read_text())
        return Durations(
            _seconds(found["tests"]),
            {str(file): Rest(int(tests), float(seconds)) for file, (tests, seconds) in found["rest"].items()},
            _seconds(found["fixtures"]),
        )
    except FileNotFoundError:
        return Durations()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDurations(
            f"{path} isn't a record of durations ({type(error).__name__}: {error}); `make durations` writes one"
        ) from error


def dump(record: Durations) -> str:
    """Return the text of the record: JSON, sorted, one line for each entry."""
    parts: dict[str, Mapping[str, Any]] = {
        "tests": record.tests,
        "rest": {file: [rest.tests, rest.seconds] for file, rest in record.rest.items()},
        "fixtures": record.fixtures,
    }
    return "{\n" + ",\n".join(f'"{name}": {_lines(entries)}' for name, entries in parts.items()) + "\n}\n"


def save(record: Durations, path: Path) -> None:
    """Write the record to the file `path`; its folder is made if it isn't there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump(record))


def main(arguments: Sequence[str] | None = None) -> int:
    """Put the records of a run's parts into the committed one. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.suite.durations",
        description="Put records that `pytest --record-durations FILE` wrote into one. A test file that they measured "
        "is replaced whole, so measure whole files; a file that no longer exists is dropped.",
    )
    parser.add_argument("records", metavar="RECORD", nargs="+", type=Path, help="a file that a run wrote")
    parser.add_argument("--into", metavar="FILE", type=Path, default=COMMITTED, help="default: the committed record")
    args = parser.parse_args(arguments)
    missing = [str(path) for path in args.records if not path.exists()]
    if missing:
        sys.stderr.write(f"{missing[0]} doesn't exist; `pytest --record-durations {missing[0]}` writes it\n")
        return 2
    try:
        new = combine(load(path) for path in args.records)
        result = replace(load(args.into), new, lambda file: (ROOT / file).exists())
    except BadDurations as error:
        sys.stderr.write(f"{error}\n")
        return 2
    save(result, args.into)
    sys.stdout.write(f"{args.into}: {new.count} tests measured, {result.count} in the record\n")
    return 0


def _seconds(entries: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(seconds) for name, seconds in entries.items()}


def _lines(entries: Mapping[str, Any]) -> str:
    if not entries:
        return "{}"
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(entries[name])}" for name in sorted(entries)) + "\n}"


if __name__ == "__main__":
    sys.exit(main())
