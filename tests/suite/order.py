"""In which groups and in which order tests are handed to workers, and how they are split into shards.

A group runs on one worker. Tests in the pytest process are grouped by file. A test that starts processes or pods is a
group of its own, and so is a test that takes long, unless it shares an expensive fixture with other tests of its file.
The longest group comes first, so that both cores end at about the same time; what was never measured comes before it,
because it may take any time. Tests with the marker `together` are a group with all of their file that have the same
parameters, or the same argument of the marker: they use what one of them has computed. Nothing here does I/O.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.suite.durations import Durations
from tests.suite.kinds import CLUSTER, PROCESS, PURE, Kind, file_of

LONG_S = 2.0
"""From here on a test in the pytest process is a group of its own: there is more to gain than a second import."""

EXPENSIVE_S = 1.0
"""From here on a shared fixture holds its tests together on one worker."""

UNKNOWN_S = 1.0
"""What a test counts that was never measured, where a number is needed."""


ALONE = "alone"
"""The group of the tests that need their machine alone. It is the last one, whatever it takes."""


@dataclass(frozen=True)
class Case:
    """A collected test. `shared`: the fixtures that it shares with other tests of its file only. `together`: what names
    the tests of its file that use what one of them has computed; "": none do."""

    id: str
    kind: Kind = PURE
    shared: tuple[str, ...] = ()
    together: str = ""


@dataclass(frozen=True)
class Group:
    """Tests that run one after another on one worker: how long, and whether a test in it was never measured."""

    name: str
    seconds: float
    unknown: bool = False


def group_of(case: Case, known: Durations) -> str:
    """Return the name of the test's group: its file, or its id if it can run anywhere."""
    file = file_of(case.id)
    if any(_is_expensive(fixture, known) for fixture in case.shared):
        return file
    if case.together:
        return f"{file}[{case.together}]"
    if case.kind in (PROCESS, CLUSTER) or known.tests.get(case.id, 0.0) >= LONG_S:
        return case.id
    return file


def measure(cases: Sequence[Case], groups: Sequence[str], known: Durations) -> dict[str, Group]:
    """Return each group by its name, in the order of its first test. `groups[n]` is the group of `cases[n]`."""
    unlisted = Counter(file_of(case.id) for case in cases if case.id not in known.tests)
    mean_s = {file: rest.seconds / rest.tests for file, rest in known.rest.items() if rest.tests}
    has_new = {file for file, tests in unlisted.items() if file not in known.rest or tests > known.rest[file].tests}
    seconds: dict[str, float] = defaultdict(float)
    unknown: dict[str, bool] = defaultdict(bool)
    counted: set[tuple[str, str]] = set()
    for case, group in zip(cases, groups, strict=True):
        file = file_of(case.id)
        listed = case.id in known.tests
        seconds[group] += known.tests[case.id] if listed else mean_s.get(file, UNKNOWN_S)
        unknown[group] |= not listed and file in has_new
        for fixture in case.shared:
            if (group, fixture) not in counted:
                counted.add((group, fixture))
                seconds[group] += known.fixtures.get(fixture, 0.0)
    return {name: Group(name, seconds[name], unknown[name]) for name in dict.fromkeys(groups)}


def longest_first(cases: Sequence[Case], groups: Sequence[str], known: Durations) -> list[int]:
    """Return the positions of `cases` in the order in which to run them; tests of a group keep their order."""
    members: dict[str, list[int]] = defaultdict(list)
    for position, group in enumerate(groups):
        members[group].append(position)
    ordered = sorted(
        measure(cases, groups, known).values(),
        key=lambda group: (group.name == ALONE, not group.unknown, -group.seconds),
    )
    return [position for group in ordered for position in members[group.name]]


def split(groups: Iterable[Group], shards: int) -> list[frozenset[str]]:
    """Return the names of the groups in each shard. The shards take about equally long; each group is in one."""
    filled: list[set[str]] = [set() for _ in range(shards)]
    seconds = [0.0] * shards
    for group in sorted(groups, key=lambda group: (-group.seconds, group.name)):
        least = seconds.index(min(seconds))
        filled[least].add(group.name)
        seconds[least] += group.seconds
    return [frozenset(names) for names in filled]


def sums(seconds: Mapping[str, float], kinds: Mapping[str, str]) -> dict[str, tuple[int, float]]:
    """Return for each kind how many tests ran and how many seconds they took together."""
    found: dict[str, tuple[int, float]] = {}
    for test, spent in seconds.items():
        tests, before = found.get(kinds[test], (0, 0.0))
        found[kinds[test]] = (tests + 1, before + spent)
    return found


def _is_expensive(fixture: str, known: Durations) -> bool:
    """A fixture of a file that was measured, but isn't in the record, is too short to be listed."""
    unmeasured = EXPENSIVE_S if file_of(fixture) not in known.files else 0.0
    return known.fixtures.get(fixture, unmeasured) >= EXPENSIVE_S
