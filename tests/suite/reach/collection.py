"""The pytest plugin that tells a recording which tests there are: `--reach-collect FILE` writes them as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

DAILY = ("-m", "not release")
"""Words for pytest: the tests of which a change chooses some. Those that guard releases are neither chosen nor
recorded; they would take more than half of a recording."""

_SHARED = ("class", "module", "package")
"""Scopes of fixtures that the tests of a file share: run by itself, a test would set them up for itself."""


@dataclass(frozen=True)
class Test:
    """A collected test. `shares_fixture`: it shares the set-up of a fixture with other tests of its file."""

    __test__ = False

    id: str
    starts_processes: bool
    shares_fixture: bool


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reach-collect", metavar="FILE", type=Path, help="write which tests were collected")


def pytest_collection_finish(session: pytest.Session) -> None:
    target: Path | None = session.config.getoption("reach_collect")
    if target is not None:
        target.write_text(json.dumps([asdict(_describe(item)) for item in session.items]))


def read(file: Path) -> list[Test]:
    """Return the tests that a collection wrote."""
    return [Test(**described) for described in json.loads(file.read_text())]


def _describe(item: pytest.Item) -> Test:
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return Test(
        item.nodeid,
        item.get_closest_marker("processes") is not None,
        any(_is_shared(found) for found in definitions.values()),
    )


def _is_shared(definitions: Iterable[pytest.FixtureDef[object]]) -> bool:
    return any(definition.scope in _SHARED for definition in definitions)
