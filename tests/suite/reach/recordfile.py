"""The record of what each test executed, and its file.

A *unit* is a test file, or one test of a file that was recorded by itself; the unit of the file then stands for the
rest of its tests. The record of a unit says which blocks of which texts it reached and which files it read. Units may
have been recorded at different times, so the same path can have several texts. The file is JSON, sorted, compressed and
without a time, so that the same record is the same file.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.suite.reach.blocks import SCHEME

COMMITTED = Path(__file__).with_name("record.json.gz")


class BadRecord(Exception):
    """A file that is no record. The message names the file and says what is wrong."""


@dataclass(frozen=True, order=True)
class Text:
    """A version of a file: its path and the hash that git gives its content. Of a folder: the hash of its listing."""

    path: str
    blob: str


@dataclass(frozen=True)
class Unit:
    """What one unit executed.

    `reached`: numbers of blocks, by text. `used`: files that were read as data, and folders that were listed. `own`:
    the test's file and what it can import of the tests. `known`: all texts that had probes. `complete` is False if the
    tests failed, or a source was changed meanwhile.
    """

    tests: int
    reached: Mapping[Text, frozenset[int]]
    used: frozenset[Text]
    own: frozenset[Text]
    known: frozenset[Text]
    complete: bool = True

    @cached_property
    def known_paths(self) -> frozenset[str]:
        """The paths of all files that had probes."""
        return frozenset(text.path for text in self.known)

    @cached_property
    def _by_path(self) -> dict[str, tuple[Text, frozenset[int]]]:
        return {text.path: (text, blocks) for text, blocks in self.reached.items()}

    def reached_in(self, path: str) -> list[tuple[Text, frozenset[int]]]:
        """Return the text of the file that was recorded, with the blocks reached in it; [] if none was."""
        return [self._by_path[path]] if path in self._by_path else []


@dataclass(frozen=True)
class Record:
    """All units by name: `tests/x/test_y.py`, or `tests/x/test_y.py::test_z[case]`."""

    units: Mapping[str, Unit] = field(default_factory=dict)

    def with_units(self, units: Mapping[str, Unit]) -> Record:
        """Return the record with these units added or replaced."""
        return Record({**self.units, **units})

    def only(self, wanted: Iterable[str]) -> Record:
        """Return the record of the units that are wanted."""
        return Record({name: self.units[name] for name in wanted if name in self.units})


def file_of(unit: str) -> str:
    """Return the path of the test file of a unit."""
    return unit.partition("::")[0]


def load(path: Path) -> Record:
    """Return the record in a file; an empty one if there is no file, or one of an older scheme. Raises BadRecord."""
    try:
        raw = json.loads(gzip.decompress(path.read_bytes()))
        return _decode(raw) if raw["scheme"] == SCHEME else Record()
    except FileNotFoundError:
        return Record()
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
        raise BadRecord(
            f"{path} isn't a record of what tests executed ({type(error).__name__}: {error}); `make reach` writes one"
        ) from error


def save(record: Record, path: Path) -> None:
    """Write the record to a file; what stood there before is replaced at once."""
    content = json.dumps(_encode(record), separators=(",", ":"), sort_keys=True).encode()
    fresh = path.with_suffix(".fresh")
    fresh.write_bytes(gzip.compress(content, mtime=0))
    fresh.rename(path)


def _encode(record: Record) -> dict[str, Any]:
    units = record.units.values()
    texts = sorted({text for unit in units for text in (*unit.reached, *unit.used, *unit.own, *unit.known)})
    of_text = {text: number for number, text in enumerate(texts)}
    sets = sorted({(of_text[text], _pack(blocks)) for unit in units for text, blocks in unit.reached.items()})
    of_set = {key: number for number, key in enumerate(sets)}
    states = sorted({tuple(sorted(of_text[text] for text in unit.known)) for unit in units})
    return {
        "scheme": SCHEME,
        "texts": [[text.path, text.blob] for text in texts],
        "sets": [[number, packed] for number, packed in sets],
        "states": [_steps(state) for state in states],
        "units": {
            name: {
                "tests": unit.tests,
                "state": states.index(tuple(sorted(of_text[text] for text in unit.known))),
                "reached": _steps(sorted(of_set[of_text[t], _pack(blocks)] for t, blocks in unit.reached.items())),
                "used": _steps(sorted(of_text[text] for text in unit.used)),
                "own": _steps(sorted(of_text[text] for text in unit.own)),
                **({} if unit.complete else {"incomplete": 1}),
            }
            for name, unit in record.units.items()
        },
    }


def _decode(raw: Mapping[str, Any]) -> Record:
    texts = [Text(path, blob) for path, blob in raw["texts"]]
    sets = [(texts[number], _unpack(packed)) for number, packed in raw["sets"]]
    states = [frozenset(texts[number] for number in _sums(state)) for state in raw["states"]]
    return Record(
        {
            name: Unit(
                unit["tests"],
                dict(sets[number] for number in _sums(unit["reached"])),
                frozenset(texts[number] for number in _sums(unit["used"])),
                frozenset(texts[number] for number in _sums(unit["own"])),
                states[unit["state"]],
                "incomplete" not in unit,
            )
            for name, unit in raw["units"].items()
        }
    )


def _pack(blocks: Iterable[int]) -> str:
    return format(sum(1 << number for number in blocks), "x")


def _unpack(packed: str) -> frozenset[int]:
    bits = int(packed, 16)
    return frozenset(number for number in range(bits.bit_length()) if bits >> number & 1)


def _steps(numbers: Iterable[int]) -> list[int]:
    """Differences between ascending numbers: they compress better."""
    ascending = [*numbers]
    return [number - before for before, number in zip([0, *ascending], ascending, strict=False)]


def _sums(steps: Iterable[int]) -> list[int]:
    total, numbers = 0, []
    for step in steps:
        total += step
        numbers.append(total)
    return numbers
