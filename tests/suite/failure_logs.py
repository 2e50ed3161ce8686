"""A pytest plugin that keeps the log of each failure, and every test's outcome, while the run goes on.

With `--failure-logs FOLDER` it writes a file for each failure and a line for each test to `outcomes.jsonl`. What it has
written stays, even if the run is cut short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

OUTCOMES = "outcomes.jsonl"
_LONGEST_NAME = 120


@dataclass(frozen=True)
class Outcome:
    """How a test ended once. `log`: the file with what is known of its failure, empty if it didn't fail."""

    test: str
    failed: bool
    log: str = ""


def read_outcomes(folder: Path) -> list[Outcome]:
    """Return the outcomes that a run wrote into `folder`; none if it ran no test."""
    file = folder / OUTCOMES
    return [Outcome(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite", "durations and order of tests")
    group.addoption("--failure-logs", metavar="FOLDER", type=Path, help="keep the log of each failure in this folder")


def pytest_configure(config: pytest.Config) -> None:
    folder: Path | None = config.getoption("failure_logs")
    if folder is not None and not hasattr(config, "workerinput"):
        folder.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(FailureLogs(folder), "suite-failure-logs")


class FailureLogs:
    """Writes as reports arrive. A test's outcome is known when its teardown is reported, or its worker has died."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: dict[str, Path] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        if report.failed:
            # A test that fails twice, in its call and in its teardown, has both in one file.
            first = test not in self._logs
            log = self._logs.setdefault(test, self._folder / file_name(test, self._logs.values()))
            with log.open("w" if first else "a") as file:
                file.write(text_of(report))
        if report.when in ("setup", "call"):
            return
        log = self._logs.get(test)
        outcome = Outcome(test, log is not None, str(log or ""))
        with (self._folder / OUTCOMES).open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")


def file_name(test: str, taken: Iterable[Path]) -> str:
    """Return a file name for the log of the test, which none of the files in `taken` has."""
    within = test.rpartition("/")[2].replace(".py::", ".")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", within)[:_LONGEST_NAME].strip("-.")
    names = {path.name for path in taken}
    candidates = [f"{name}.log", *(f"{name}-{n}.log" for n in range(2, len(names) + 3))]
    return next(candidate for candidate in candidates if candidate not in names)


def text_of(report: pytest.TestReport) -> str:
    """Return what is known of a failure: the error and its traceback, then what the test wrote."""
    head = f"{report.nodeid}: {report.when} failed after {report.duration:.2f} s\n\n"
    sections = "".join(f"\n--- {title} ---\n{content}" for title, content in report.sections)
    return f"{head}{report.longreprtext}\n{sections}\n"
