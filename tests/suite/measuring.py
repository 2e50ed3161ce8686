"""Measures tests and the fixtures that they share, in the process that runs them and in the one that reports.

pytest-xdist runs tests in workers and reports in a controller. `Stopwatch` works where tests run and writes what it
found on each report; `Results` reads it where reports arrive, which without workers is the same process.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest

from tests.suite.durations import Durations, summarise
from tests.suite.kinds import file_of, kind_of


def shared_fixture(fixture: pytest.FixtureDef[Any], file: str) -> str | None:
    """Return the name under which a fixture is recorded; None if it is made for each test or isn't ours.

    A fixture of a module belongs to the file whose tests use it, one of a session to where it is defined.
    """
    if fixture.scope == "function" or not fixture.baseid:
        return None
    owner = fixture.baseid if fixture.scope in ("session", "package") else file
    return f"{owner}::{fixture.argname}"


class Stopwatch:
    """Measures the set-up and the end of shared fixtures, and tells it with the report of the test that ran then."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._own_s: dict[str, float] = defaultdict(float)
        self._running: list[tuple[str, float, float]] = []
        """Of each fixture that is being made or ended: its name, when that began, what others took within."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        name = shared_fixture(fixturedef, file_of(request.node.nodeid))
        if name is None:
            return (yield)
        # Finalizers run in the reverse order: the fixture's own is added in between.
        fixturedef.addfinalizer(self.stop)
        self.start(name)
        try:
            return (yield)
        finally:
            self.stop()
            fixturedef.addfinalizer(partial(self.start, name))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # Attributes of a report travel from a worker to the controller if they are plain values.
        report.shared_s = self.take()
        report.kind = kind_of(item.nodeid, item.get_closest_marker("processes") is not None).name
        return report

    def take(self) -> dict[str, float]:
        """Return the seconds of each shared fixture since this was asked last."""
        taken = dict(self._own_s)
        self._own_s.clear()
        return taken

    def start(self, name: str) -> None:
        """Begin to measure a shared fixture, perhaps within another one."""
        self._running.append((name, self._clock(), 0.0))

    def stop(self) -> None:
        """End what began last; its seconds are no longer those of the fixture around it."""
        name, began, within_s = self._running.pop()
        spent_s = self._clock() - began
        self._own_s[name] += spent_s - within_s
        if self._running:
            outer, outer_began, outer_within_s = self._running[-1]
            self._running[-1] = (outer, outer_began, outer_within_s + spent_s)


class Results:
    """What the reports told: seconds and kind of each test, seconds of shared fixtures, which tests failed."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.kinds: dict[str, str] = {}
        self.failed: set[str] = set()
        self._shared_s: dict[tuple[str, str], float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        shared_s: dict[str, float] = getattr(report, "shared_s", {})
        self.seconds[report.nodeid] += max(0.0, report.duration - sum(shared_s.values()))
        self.kinds[report.nodeid] = getattr(report, "kind", kind_of(report.nodeid, False).name)
        if report.failed:
            self.failed.add(report.nodeid)
        for name, spent_s in shared_s.items():
            self._shared_s[getattr(report, "worker_id", ""), name] += spent_s

    @property
    def fixtures(self) -> dict[str, float]:
        """Seconds of each shared fixture. If several workers made one, the longest of them counts."""
        longest: dict[str, float] = {}
        for (_, name), spent_s in self._shared_s.items():
            longest[name] = max(spent_s, longest.get(name, 0.0))
        return longest

    @property
    def fixtures_of_all_workers_s(self) -> float:
        """Seconds of all shared fixtures, those that each worker made for itself included."""
        return sum(self._shared_s.values())

    def durations(self) -> Durations:
        """Return the record of this run. A failed test isn't in it: it may have ended early or waited for a limit."""
        passed = {test: seconds for test, seconds in self.seconds.items() if test not in self.failed}
        return summarise(passed, self.fixtures)
