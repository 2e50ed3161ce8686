"""The pytest plugin that runs what was chosen: it leaves the rest of a file out and lets near tests come first.

`--reach-choice FILE` names a JSON file: `leave_out` lists the tests that can't be reached in files that can, and
`nearness` says for each chosen unit how near it is (0 is nearest). Among equally near tests those that start processes
come last, and the order is that of tests/suite/plugin.py. When all units up to the nearness `about` have ended,
a line says so: whoever waits need not wait for the others.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

HANDOVER = "suite_groups"
"""What tests/suite/plugin.py calls the folder in which its workers write the groups of their tests."""

LAST = "alone"
"""Its group of tests that need the machine alone; it stays at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reach-choice", metavar="FILE", type=Path, help="run what the file says, near tests first")


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("reach_choice"):
        # Registered now and not before, so that it is the outermost: it sorts after all others have sorted.
        choice = _read(session.config)
        session.config.pluginmanager.register(_Order(choice["nearness"]), "reach-order")
        if not hasattr(session.config, "workerinput"):
            session.config.pluginmanager.register(_Nearest(session.config, choice), "reach-nearest")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("reach_choice"):
        left_out = {*_read(config)["leave_out"]}
        dropped = [item for item in items if item.nodeid in left_out]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item.nodeid not in left_out]


def _read(config: pytest.Config) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(config.getoption("reach_choice").read_text())
    return found


class _Order:
    def __init__(self, nearness: Mapping[str, int]) -> None:
        self.nearness = nearness

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
        yield
        places = [
            (nearness_of(item.nodeid, self.nearness), item.get_closest_marker("processes") is not None)
            for item in items
        ]
        groups = _groups(config)
        order = sort([groups.get(item.nodeid, item.nodeid.partition("::")[0]) for item in items], places)
        items[:] = [items[position] for position in order]


class _Nearest:
    def __init__(self, config: pytest.Config, choice: Mapping[str, Any]) -> None:
        self.reporter = config.pluginmanager.get_plugin("terminalreporter")
        self.nearness, self.about = choice["nearness"], choice["about"]
        self.began = time.monotonic()
        self.left: set[str] = set()
        self.count = self.others = 0
        self.failed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        self._begin(ids)

    def _begin(self, ids: Sequence[str]) -> None:
        if not self.count:  # each worker collects the same
            self.left = {test for test in ids if nearness_of(test, self.nearness) <= self.about}
            self.count = len(self.left)
            self.others = len(ids) - self.count

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid not in self.left:
            return
        if report.failed:
            self.failed.add(report.nodeid)
        if report.when == "teardown":
            self.left.remove(report.nodeid)
            if not self.left and self.others and self.reporter is not None:
                self.reporter.write_line("")
                self.reporter.write_line(
                    f"The {self.count} tests nearest to the change have ended after "
                    f"{time.monotonic() - self.began:.0f} s; {len(self.failed) or 'none'} failed. "
                    f"Still to run: {self.others}."
                )


def nearness_of(test_id: str, nearness: Mapping[str, int]) -> int:
    """Return how near a test is: as its own unit or as one of its file."""
    farthest = max(nearness.values(), default=0)
    return nearness.get(test_id, nearness.get(test_id.partition("::")[0], farthest))


def sort(groups: Sequence[str], places: Sequence[tuple[int, bool]]) -> list[int]:
    """Return the positions of tests in the order in which to run them.

    Groups stay together, as do tests in a group, and a group is as near as its nearest test.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for position, group in enumerate(groups):
        members[group].append(position)
    ordered = sorted(members, key=lambda group: (group == LAST, min(places[position] for position in members[group])))
    return [position for group in ordered for position in members[group]]


def _groups(config: pytest.Config) -> dict[str, str]:
    """Return the group of each test, as the worker has just written it; {} without workers."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if HANDOVER not in worker:
        return {}
    found: dict[str, str] = json.loads((Path(worker[HANDOVER]) / f"{worker['workerid']}.json").read_text())
    return found
