"""Which tests a change can reach, and why. Nothing here does I/O.

The record is asked first. It may be older than the revision that the change is compared with. It stays sound because a
unit is trusted only while nothing that it executed, read or consists of has changed since it was recorded, and while
the record knows all files that the import graph says it can execute: then it still executes the same. Of a unit that is
not trusted the record and the import graph together say what it can reach. What neither of them can answer chooses
everything, and says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath

from tests.suite.reach import blocks
from tests.suite.reach.changes import ALL, NOTHING, TextChange, compare
from tests.suite.reach.facts import SOURCE, SUITE
from tests.suite.reach.graph import CONFTEST, Graph, is_test_file
from tests.suite.reach.probes import is_probed
from tests.suite.reach.recordfile import Record, Text, Unit, file_of

EVERYTHING = ("pyproject.toml", "constraints.txt")
"""They say with what all tests run."""

PAGES = (".md", "Makefile", "LICENSE", ".gitignore")
"""Ends of paths of files for people: only a test that names them can notice a change."""

RECORD, OLD, GRAPH = "record", "older record", "import graph"
NAME, ITSELF, UNSURE = "name", "itself", "not sure"
"""Sources of knowledge. An older record: a unit that is not trusted imported the file when it was recorded."""

NAMESAKE, SPECIAL, NEIGHBOUR, NEAR, FAR, FARTHEST = range(6)
"""How near a unit is to the change: a test of the same name; one of few that reach a block; one that reaches it and
lies in the folder of its subject; any other that reaches it; one that may, as far as is known; one whose record
connects it with nothing of the change, but is too old.
"""

FEW = 5
"""A block that at most so many units reach is a special one: what reaches it is nearer than the rest."""


FEW_IMPORTERS = 3
"""So many units show whether a module can still be imported."""


@dataclass(frozen=True)
class Sight:
    """What the choice looks at. `before` is the revision that the change is compared with, `now` the working tree.

    Blobs and listings are hashes by path. The two functions return the text that a hash or a path stands for, or None.
    """

    blobs_before: Mapping[str, str]
    blobs_now: Mapping[str, str]
    listings_before: Mapping[str, str]
    listings_now: Mapping[str, str]
    text_of: Callable[[str], str | None]
    text_now: Callable[[str], str | None]
    graph: Graph
    record: Record = field(default_factory=Record)

    @cached_property
    def changed(self) -> list[str]:
        """Paths of the files that were changed, added or removed."""
        paths = {*self.blobs_before, *self.blobs_now}
        return sorted(path for path in paths if self.blobs_before.get(path) != self.blobs_now.get(path))


@dataclass(frozen=True)
class Hit:
    """Why a unit is chosen: the changed file, by which source, and how near it is (NAMESAKE to FARTHEST)."""

    path: str
    source: str
    nearness: int


@dataclass(frozen=True)
class Row:
    """What became of one changed file: `kind` says what changed in it, `units` the units that it reaches, by source."""

    path: str
    kind: str
    units: Mapping[str, str]


@dataclass(frozen=True)
class Choice:
    """Which units to run, by name, and how that was found."""

    rows: Sequence[Row]
    units: Mapping[str, Hit]
    all_units: Mapping[str, Sequence[str]]  # of each test file
    recorded: frozenset[str]
    stale: frozenset[str]  # recorded, but what they execute has changed since

    @property
    def files(self) -> list[str]:
        """The test files of which something is chosen."""
        return sorted({file_of(unit) for unit in self.units})

    def left_out(self, file: str) -> list[str]:
        """Return the tests of a test file that need not run; they were recorded by themselves."""
        return [unit for unit in self.all_units[file] if unit not in self.units and unit != file]


def without_farthest(choice: Choice) -> Choice:
    """Return the choice without units that did nothing with the changed files when they were recorded."""
    return replace(choice, units={unit: hit for unit, hit in choice.units.items() if hit.nearness < FARTHEST})


def choose(sight: Sight) -> Choice:
    """Return the units that the change can reach."""
    return _Chooser(sight).run()


class _Chooser:
    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.graph = sight.graph
        self.units: dict[str, list[str]] = {file: [file] for file in sight.graph.tests}
        for name in sight.record.units:
            if file_of(name) in self.units and name not in self.units[file_of(name)]:
                self.units[file_of(name)].append(name)
        self._whole: set[str] = set()  # paths of which new or lost names concern their importers
        self._compared: dict[tuple[Text, str | None], TextChange] = {}

    def run(self) -> Choice:
        rows = [self._row(path) for path in self.sight.changed]
        chosen: dict[str, Hit] = {}
        for row in rows:
            few = self._special(row)
            for unit, source in row.units.items():
                nearness = self._nearness(row, unit)
                nearness = min(nearness, SPECIAL) if unit in few else nearness
                if unit not in chosen or nearness < chosen[unit].nearness:
                    chosen[unit] = Hit(row.path, source, nearness)
        recorded = frozenset(u for units in self.units.values() for u in units if u in self.sight.record.units)
        stale = frozenset(unit for unit in recorded if not self._is_trusted(unit))
        return Choice(rows, chosen, self.units, recorded, stale)

    def _nearness(self, row: Row, unit: str) -> int:
        source = row.units[unit]
        if _is_namesake(row.path, file_of(unit)):
            return NAMESAKE
        if source == GRAPH:
            return FARTHEST if unit in self.sight.record.units else FAR
        if source == OLD or (source == NAME and row.path.endswith(SOURCE)):
            return FAR
        return NEIGHBOUR if _is_neighbour(row.path, unit) else NEAR

    def _row(self, path: str) -> Row:
        """Ask the sources about one changed file."""
        if path in EVERYTHING:
            return Row(path, "settings of all tests", dict.fromkeys(self._all(), UNSURE))
        found: dict[str, str] = {}
        if path.endswith(SOURCE):
            kind = self._ask_about_source(path, found)
        else:
            kind = "data" if path in self.sight.blobs_before else "new data"
        by_name, named = self._by_name(path)
        for unit in [*self._readers(path), *by_name]:
            found.setdefault(unit, NAME)
        if path.endswith(SOURCE) or found or named:
            return Row(path, kind, found)
        if path.endswith(PAGES) or path.startswith(SUITE):
            return Row(path, f"{kind}, which no test names", {})
        return Row(path, f"{kind}, which nobody names", dict.fromkeys(self._all(), UNSURE))

    def _ask_about_source(self, path: str, found: dict[str, str]) -> str:
        """Add the units that a changed Python file reaches to `found`; return what changed in it."""
        before, now = self.sight.blobs_before.get(path), self.sight.blobs_now.get(path)
        change = self._compare(Text(path, before), now) if before else NOTHING
        if before and change.empty:
            return "comments, docstrings or formatting"
        if self._is_mentioned(path, change.bound):
            self._whole.add(path)
        if path in self.units:
            found.update(dict.fromkeys(self.units[path], ITSELF))
        if PurePosixPath(path).name == CONFTEST:
            below = f"{PurePosixPath(path).parent}/"
            found.update(dict.fromkeys((unit for unit in self._all() if unit.startswith(below)), GRAPH))
        whole = not (before and now) or change.module_level or path in self._whole
        functions = None if whole else change.names
        for unit in self._all():
            recorded = self.sight.record.units.get(unit)
            if recorded is not None and self._reaches(recorded, path):
                found.setdefault(unit, RECORD)
            elif recorded is not None and recorded.reached_in(path) and not self._is_trusted(unit):
                found.setdefault(unit, OLD)
            elif not self._excludes(unit, path) and self.graph.reaches(file_of(unit), path, functions):
                found.setdefault(unit, GRAPH)
        if change.loads:
            for unit in self._importers(path):
                found.setdefault(unit, RECORD if unit in self.sight.record.units else GRAPH)
        if is_test_file(path):
            return "tests"
        if not before or not now:
            return "new module" if now else "removed module"
        if change.module_level or path in self._whole:
            return "module level"
        return f"in {', '.join(change.names)}" if change.names else f"names: {', '.join(sorted(change.bound))}"

    def _excludes(self, unit: str, path: str) -> bool:
        """Tell whether the record is enough to say that a unit doesn't execute a file: it would have been seen."""
        recorded = self.sight.record.units.get(unit)
        return recorded is not None and path in recorded.known_paths and self._is_trusted(unit)

    def _reaches(self, unit: Unit, path: str) -> bool:
        """Tell whether a unit executed a block that the change touches."""
        now, level = self.sight.blobs_now.get(path), frozenset({0} if path in self._whole else ())
        return any(bool(reached & (self._compare(text, now).blocks | level)) for text, reached in unit.reached_in(path))

    def _is_mentioned(self, path: str, names: frozenset[str]) -> bool:
        """Tell whether a file that imports `path`, as it was before, has one of these names in its text."""
        if not names:
            return False
        words = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")
        texts = (self.sight.text_of(self.sight.blobs_before.get(file, "")) for file in self.graph.importers(path))
        return any(text is not None and words.search(text) is not None for text in texts)

    def _importers(self, path: str) -> list[str]:
        """Return a few units that import `path` and execute little besides: they show whether it can be imported."""
        importing = []
        for unit in self._all():
            recorded = self.sight.record.units.get(unit)
            if recorded is not None and recorded.reached_in(path):
                importing.append((len(recorded.reached), unit))
            elif recorded is None and path in self.graph.closure(file_of(unit)):
                importing.append((len(self.graph.closure(file_of(unit))), unit))
        return [unit for _, unit in sorted(importing)[:FEW_IMPORTERS]]

    def _readers(self, path: str) -> Iterator[str]:
        """Yield the units that were seen reading a changed file, or listing a folder in which it is new or missing."""
        listed = {
            folder
            for folder in map(str, PurePosixPath(path).parents)
            if self.sight.listings_before.get(folder) != self.sight.listings_now.get(folder)
        }
        for unit in self._all():
            recorded = self.sight.record.units.get(unit)
            if recorded is not None and any(used.path == path or used.path in listed for used in recorded.used):
                yield unit

    def _by_name(self, path: str) -> tuple[list[str], bool]:
        """Return the units that use what names a file, and whether anything names it."""
        naming = self.graph.naming(path)
        if path.startswith(SUITE) and not path.endswith(SOURCE):
            return [unit for unit in self._all() if unit.startswith(SUITE)], bool(naming)
        lines: dict[str, list[int]] = defaultdict(list)
        for file, line in naming:
            lines[file].append(line)
        return [unit for unit in self._all() if any(self._uses(unit, f, lines[f]) for f in lines)], bool(naming)

    def _uses(self, unit: str, file: str, lines: Iterable[int]) -> bool:
        """Tell whether a unit can execute one of these lines of a file."""
        recorded = self.sight.record.units.get(unit)
        if recorded is None or not self._excludes(unit, file):
            return file in self.graph.closure(file_of(unit))
        for text, reached in recorded.reached_in(file):
            same = text.blob == self.sight.blobs_now.get(file)
            if reached & ({self._block(text, line) for line in lines} if same else {0}):
                return True
        return False

    def _block(self, text: Text, line: int) -> int:
        if text not in self._blocks:
            self._blocks[text] = blocks.read(self.sight.text_of(text.blob) or "")
        return blocks.block_of_line(self._blocks[text], line)

    @cached_property
    def _blocks(self) -> dict[Text, list[blocks.Block]]:
        return {}

    def _is_trusted(self, name: str) -> bool:
        if name not in self._trusted:
            unit = self.sight.record.units.get(name)
            complete = unit is not None and unit.complete
            self._trusted[name] = complete and not self._is_stale(unit) and not self._lacks_files(name, unit)
        return self._trusted[name]

    @cached_property
    def _trusted(self) -> dict[str, bool]:
        return {}

    def _is_stale(self, unit: Unit) -> bool:
        """Tell whether anything that a unit executed or read has changed between its recording and the revision."""
        before = self.sight.blobs_before
        if any((before.get(used.path) or self.sight.listings_before.get(used.path)) != used.blob for used in unit.used):
            return True
        if any(not self._compare(text, before.get(text.path)).empty for text in unit.own):
            return True
        return any(
            bool(reached & self._compare(text, before.get(text.path)).blocks) for text, reached in unit.reached.items()
        )

    def _lacks_files(self, name: str, unit: Unit) -> bool:
        """Tell whether a unit may execute what had no probes when it was recorded: it is newer, or its folder had none.
        A conftest.py counts though nothing that the unit consisted of has changed: nobody imports it."""
        known = unit.known_paths | {text.path for text in unit.own}
        return any(
            path in self.sight.blobs_before and (is_probed(path) or PurePosixPath(path).name == CONFTEST)
            for path in self.graph.closure(file_of(name)) - known
        )

    def _compare(self, text: Text, blob: str | None) -> TextChange:
        """Return what changed from a text to the one of this hash. A text that can't be had changed as a whole."""
        if text.blob == blob:
            return NOTHING
        key = text, blob
        if key not in self._compared:
            old = self.sight.text_of(text.blob)
            now = blob is not None and blob == self.sight.blobs_now.get(text.path)
            new = None if blob is None else self.sight.text_now(text.path) if now else self.sight.text_of(blob)
            self._compared[key] = compare(old, new) if old is not None else ALL
        return self._compared[key]

    def _special(self, row: Row) -> set[str]:
        """Return the units that reach a changed block which few reach."""
        reaching: dict[tuple[Text, int], set[str]] = defaultdict(set)
        now = self.sight.blobs_now.get(row.path)
        for unit in row.units:
            recorded = self.sight.record.units.get(unit)
            for text, reached in recorded.reached_in(row.path) if recorded is not None else ():
                for number in reached & self._compare(text, now).blocks:
                    reaching[text, number].add(unit)
        return {unit for units in reaching.values() if len(units) <= FEW for unit in units}

    def _all(self) -> list[str]:
        return [unit for units in self.units.values() for unit in units]


def _is_neighbour(path: str, unit: str) -> bool:
    """Tell whether tests of a folder are about a path, as those in tests/control are about control/agent_state.py."""
    return PurePosixPath(unit).parent.name in PurePosixPath(path).parts[:-1]


def _is_namesake(path: str, test_file: str) -> bool:
    """Tell whether a test file is the one of this module, such as test_straggler.py of straggler.py."""
    wanted, stem = PurePosixPath(path).stem, PurePosixPath(test_file).stem
    return path == test_file or stem == f"test_{wanted}" or stem.startswith(f"test_{wanted}_")
