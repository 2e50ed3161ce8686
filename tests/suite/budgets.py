"""Names the tests that take longer than their kind may, by the committed durations.

A test in over_budget.txt may take longer, for the reason given there. An entry whose tests are gone, or take less than
half of their budget, is named too: durations differ from one measurement to the next, so a test near its budget may be
in the list and below it. Without `--check` the command prints the budgets and what the tests of each kind take.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.suite import listing, sources
from tests.suite.durations import COMMITTED, ROOT, BadDurations, Durations, load
from tests.suite.kinds import FIXTURE, KINDS, Kind, file_of, kind_of
from tests.suite.listing import Entry
from tests.suite.sources import Source

ALLOWED = Path(__file__).with_name("over_budget.txt")
NEAR = 0.5
"""The share of its budget from which on a test may be listed."""

MOST_UNKNOWN = 0.1
"""The share of unknown tests from which on the durations say too little."""


@dataclass(frozen=True)
class Stale:
    """How the record of durations differs from the tests that there are."""

    lacking: Mapping[str, int] = field(default_factory=dict)
    """Test functions without a duration, by file."""
    gone: Sequence[str] = ()
    """Tests in the record that no file defines."""
    share: float = 0.0
    """Of all test functions, those that lack a duration or are gone."""


def over_budget(record: Durations, known: Mapping[str, Source], share: float = 1.0) -> dict[str, tuple[float, Kind]]:
    """Return the seconds and the kind of each test and shared fixture that takes longer than `share` of its budget."""
    kinds = {test: kind_of(test, sources.starts_processes(known, test)) for test in record.tests}
    measured = {**record.tests, **record.fixtures}
    found = {name: (seconds, kinds.get(name, FIXTURE)) for name, seconds in measured.items()}
    return {name: (seconds, kind) for name, (seconds, kind) in sorted(found.items()) if seconds > share * kind.budget_s}


def complaints(over: Mapping[str, tuple[float, Kind]], near: Iterable[str], allowed: Sequence[Entry]) -> list[str]:
    """Return a line for each test over its budget that `allowed` doesn't name, and for each entry without need.

    `near`: the tests that take at least `NEAR` of their budget.
    """
    near = list(near)
    lines = [
        f"{name}: {seconds:.2f} s; a {kind.name}{'' if kind is FIXTURE else ' test'} may take {kind.budget_s:g} s"
        for name, (seconds, kind) in over.items()
        if not any(entry.matches(name) for entry in allowed)
    ]
    lines += [f"{ALLOWED.name}: {line}" for line in listing.without_reason(allowed)]
    lines += [
        f"{ALLOWED.name}: line {entry.line}: {entry.prefix} is well within its budget, or gone; remove it"
        for entry in allowed
        if not any(entry.matches(name) for name in near)
    ]
    return lines


def staleness(record: Durations, known: Mapping[str, Source]) -> Stale:
    """Compare the record with the test functions in the files. Folders of which nothing was measured don't count."""
    measured_folders = {file.partition("/")[0] for file in record.files}
    listed: dict[str, set[str]] = defaultdict(set)
    for test in record.tests:
        listed[file_of(test)].add(test.partition("::")[2].partition("[")[0])
    lacking: dict[str, int] = {}
    functions = 0
    for file, source in known.items():
        if file.partition("/")[0] not in measured_folders:
            continue
        functions += len(source.functions)
        unlisted = len(set(source.functions) - listed[file])
        missing = unlisted - (record.rest[file].tests if file in record.rest else 0)
        if missing > 0:
            lacking[file] = missing
    gone = sorted(test for test in [*record.tests, *record.rest] if not sources.defines(known, test))
    unknown = sum(lacking.values()) + len({test.partition("[")[0] for test in gone})
    return Stale(lacking, gone, unknown / functions if functions else 1.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the budgets or print them. Return the exit code: 1 if a test is over its budget, 2 for bad input."""
    args = _parser().parse_args(arguments)
    try:
        record = load(args.durations)
    except BadDurations as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not record.count:
        sys.stderr.write(f"{args.durations} holds no durations; `make durations` writes them\n")
        return 2
    known = sources.read(args.root)
    if not args.check:
        sys.stdout.write(overview(record, known))
        return 0
    stale = staleness(record, known)
    allowed = listing.parse(args.allowed.read_text()) if args.allowed.exists() else []
    found = complaints(over_budget(record, known), over_budget(record, known, NEAR), allowed)
    for line in [*describe(stale), *found]:
        sys.stdout.write(f"{line}\n")
    return int(bool(found) or stale.share > MOST_UNKNOWN)


def describe(stale: Stale) -> list[str]:
    """Return what there is to say of a record that differs from the tests; nothing if it doesn't."""
    lines = [f"{file}: {tests} test functions have no duration yet" for file, tests in sorted(stale.lacking.items())]
    lines += [f"{test} has a duration, but no longer exists" for test in stale.gone]
    if stale.share > MOST_UNKNOWN:
        lines.append(f"{stale.share:.0%} of the tests are unknown to the durations; run `make durations`")
    elif lines:
        lines.append(f"the durations are stale ({stale.share:.1%} of the tests); `make durations` renews them")
    return lines


def overview(record: Durations, known: Mapping[str, Source]) -> str:
    """Return the table of budgets, and what the measured tests of each kind take."""
    spent: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
    for test, seconds in record.tests.items():
        spent[kind_of(test, sources.starts_processes(known, test)).name].append(seconds)
    spent[FIXTURE.name] = list(record.fixtures.values())
    lines = [f"{'kind':16}{'budget':>8}{'longest':>9}{'listed':>8}{'sum':>10}"]
    lines += [
        f"{kind.name:16}{kind.budget_s:6.0f} s{max(spent[kind.name], default=0):7.1f} s{len(spent[kind.name]):8d}"
        f"{sum(spent[kind.name]):8.1f} s  {kind.why}"
        for kind in (*KINDS, FIXTURE)
    ]
    short_s = sum(rest.seconds for rest in record.rest.values())
    tests = sum(rest.tests for rest in record.rest.values())
    return "\n".join([*lines, f"{tests} more tests are too short to be listed: {short_s:.1f} s together"]) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suite.budgets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="name each test that is over its budget; exit code 1")
    parser.add_argument("--durations", metavar="FILE", type=Path, default=COMMITTED, help="default: the committed one")
    parser.add_argument("--allowed", metavar="FILE", type=Path, default=ALLOWED, help="default: over_budget.txt")
    parser.add_argument("--root", metavar="FOLDER", type=Path, default=ROOT, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
