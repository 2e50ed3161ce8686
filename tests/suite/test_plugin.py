"""The plugin in runs of pytest with and without workers, on a made-up folder of tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.suite.durations import Durations, Rest, load, save

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
TABLE = "test_shared.py::table"

# These tests sleep because their durations are what is looked at.
SHARED = """
import os
import time

import pytest


@pytest.fixture(scope="module")
def table():
    time.sleep(0.06)
    yield os.getpid()


@pytest.mark.processes
@pytest.mark.parametrize("n", [0, 1, "x@y"])
def test_row(table, n):
    assert table == os.getpid()


@pytest.mark.processes
def test_by_itself():
    time.sleep(0.06)


def test_pure():
    pass
"""
OTHER = """
import pytest

from tests.suite.plugin import COLLECTED


@pytest.mark.alone
def test_alone():
    pass


def test_all_was_collected(request):
    assert request.config.stash[COLLECTED].whole


def test_fails():
    assert False, "on purpose"
"""
ROWS = [f"test_shared.py::test_row[{n}]" for n in (0, 1, "x@y")]
BY_ITSELF = "test_shared.py::test_by_itself"
SHARED_TESTS = [*ROWS, BY_ITSELF, "test_shared.py::test_pure"]
OTHER_TESTS = [f"test_other.py::test_{name}" for name in ("alone", "all_was_collected", "fails")]


@dataclass(frozen=True)
class Run:
    """A run of pytest in the folder: its exit code, what it wrote, its record, and the tests in their order."""

    code: int
    output: str
    record: Durations
    tests: list[str]

    def worker_of(self, test: str) -> str:
        """The worker that ran the test."""
        found = re.search(rf"^\[(gw\d)\] .* {re.escape(test)} *$", self.output, re.MULTILINE)
        assert found is not None, self.output
        return found[1]


RunPytest = Callable[..., Run]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The made-up tests. In its folder `suite` no test has a duration yet, and none guards releases only."""
    made = tmp_path / "made-up"
    (made / "suite").mkdir(parents=True)
    (made / "test_shared.py").write_text(SHARED)
    (made / "test_other.py").write_text(OTHER)
    (made / "pytest.ini").write_text("[pytest]\nmarkers = processes\ntestpaths = .\naddopts = --strict-markers\n")
    return made


@pytest.fixture
def run_pytest(folder: Path, tmp_path: Path) -> RunPytest:
    """run_pytest(*options): run the made-up tests in a process of its own."""

    def run(*options: str) -> Run:
        junit, record = tmp_path / "junit.xml", tmp_path / "record.json"
        command = [sys.executable, "-m", "pytest", "-p", "tests.suite.plugin", "-p", "no:cacheprovider", "-v"]
        command += ["-c", str(folder / "pytest.ini"), "--suite-folder", str(folder / "suite"), f"--junitxml={junit}"]
        command += ["--record-durations", str(record), *options, str(folder)]
        # It starts in half the time without the plugins that happen to be installed.
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        output = (done.stdout + done.stderr).replace(f"{os.path.relpath(folder, ROOT)}/", "")
        cases = ElementTree.parse(junit).iter("testcase") if junit.exists() else ()
        tests = [f"{case.get('classname')}.py::{case.get('name')}" for case in cases]
        return Run(done.returncode, output, load(record), tests)

    return run


def test_two_workers_share_the_tests_by_groups_and_keep_their_ids(folder: Path, run_pytest: RunPytest) -> None:
    known = {BY_ITSELF: 9.0, **dict.fromkeys(OTHER_TESTS, 1.5)}
    save(Durations(known, {"test_shared.py": Rest(4, 0.04)}, {TABLE: 2.0}), folder / "suite" / "durations.json")
    run = run_pytest("-p", "xdist.plugin", "-n", "2")
    assert sorted(run.tests) == sorted([*SHARED_TESTS, *OTHER_TESTS]), run.output
    together = {run.worker_of(test) for test in [*ROWS, "test_shared.py::test_pure"]}
    others = {run.worker_of(test) for test in OTHER_TESTS[1:]}
    # The longest group, 9 s, and the second one, 3 s, begin at once.
    assert others == {"gw0", "gw1"} - {run.worker_of(BY_ITSELF)}
    assert len(together) == 1
    # What needs the machine alone runs last, though its file comes early.
    assert run.tests[-1] == OTHER_TESTS[0]
    assert "1 failed, 7 passed" in run.output


def test_tests_that_name_what_they_share_run_on_one_worker(folder: Path, run_pytest: RunPytest) -> None:
    pair = "import pytest\nmark = [pytest.mark.processes, pytest.mark.together('pair')]\npytestmark = mark\n"
    (folder / "test_pair.py").write_text(pair + "".join(f"\n\ndef test_{n}():\n    pass\n" for n in "ab"))
    tests = [f"test_pair.py::test_{n}" for n in "ab"]
    # Apart, they would be the two longest groups, with which two workers begin.
    save(Durations(dict.fromkeys(tests, 20.0)), folder / "suite" / "durations.json")
    run = run_pytest("-p", "xdist.plugin", "-n", "2")
    assert len({run.worker_of(test) for test in tests}) == 1


def test_a_test_that_hangs_is_named_with_the_line_where_it_hangs_and_the_others_run(
    folder: Path, run_pytest: RunPytest
) -> None:
    hangs = "import threading\n\n\ndef test_hangs():\n    threading.Event().wait()\n"
    (folder / "test_hangs.py").write_text(hangs)
    limit = ["-o", "faulthandler_timeout=3", "-o", "faulthandler_exit_on_timeout=true"]
    run = run_pytest("-p", "xdist.plugin", "-n", "2", *limit, "-k", "hangs or row")
    assert "crashed while running 'test_hangs.py::test_hangs'" in run.output
    assert re.search(r'test_hangs\.py", line 5 in test_hangs', run.output), run.output
    assert "1 failed, 3 passed" in run.output


def test_a_run_records_durations_and_lists_the_slowest_tests(run_pytest: RunPytest) -> None:
    run = run_pytest()
    assert run.code == 1
    assert run.tests == [*OTHER_TESTS, *SHARED_TESTS]
    assert set(run.record.tests) == {BY_ITSELF}
    assert set(run.record.fixtures) == {TABLE}
    # The failed test isn't in the record.
    assert {file: rest.tests for file, rest in run.record.rest.items()} == {"test_shared.py": 4, "test_other.py": 2}
    slowest, _, kinds = run.output.partition("slowest 1 tests")[2].partition("\n\n")
    assert BY_ITSELF in slowest
    assert "pure: 4 tests" in kinds
    assert "process: 4 tests" in kinds
    assert "shared fixtures" in kinds


def test_listed_tests_guard_releases_only_and_some_need_the_machine_alone(folder: Path, run_pytest: RunPytest) -> None:
    (folder / "suite" / "releases.txt").write_text("# The rows take minutes.\ntest_shared.py::test_row\n")
    daily = run_pytest("-m", "not release and not alone")
    assert daily.tests == [*OTHER_TESTS[1:], BY_ITSELF, "test_shared.py::test_pure"]
    assert run_pytest("-m", "release or alone").tests == [OTHER_TESTS[0], *ROWS]


def test_each_selected_test_is_in_one_shard_and_shared_fixtures_are_not_torn_apart(run_pytest: RunPytest) -> None:
    first = run_pytest("--shard", "1/2", "-m", "processes").tests
    second = run_pytest("--shard", "2/2", "-m", "processes").tests
    assert [first, second] == [ROWS, [BY_ITSELF]]


def test_a_run_that_was_cut_short_records_nothing(folder: Path, run_pytest: RunPytest) -> None:
    (folder / "test_broken.py").write_text("import nowhere\n")
    run = run_pytest()
    assert run.code == pytest.ExitCode.INTERRUPTED
    assert "record.json not written: the run was cut short" in run.output
    assert run.record == Durations()


def test_broken_durations_are_named_before_any_test_runs(folder: Path, run_pytest: RunPytest) -> None:
    (folder / "suite" / "durations.json").write_text("{")
    run = run_pytest()
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "durations.json isn't a record of durations" in run.output
    assert run.tests == []
