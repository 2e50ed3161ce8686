"""`make flaky`: its rounds on made-up tests, its table, and that no busy loop outlives it."""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import tied
from tests.suite import load
from tests.suite.failure_logs import FailureLogs, Outcome, file_name, read_outcomes
from tests.suite.flaky import main, table
from tests.suite.plugin import shard_of
from trainmaster.host import processes

ROOT = Path(__file__).parents[2]
LIMIT_S = 60

EVERY_SECOND_TIME = """
import os
from pathlib import Path

import pytest

from trainmaster.host import processes

HERE = Path(__file__).parent


def siblings():
    return len(processes.children(os.getppid())) - 1


@pytest.mark.processes
def test_every_second_time():
    counter = HERE / "counter"
    counter.write_text(counter.read_text() + "x" if counter.exists() else "x")
    print("what the test wrote")
    assert len(counter.read_text()) % 2


@pytest.mark.processes
def test_the_machine_is_busy():
    assert siblings() == 1


@pytest.mark.processes
@pytest.mark.alone
def test_the_machine_is_quiet():
    assert siblings() == 0


def test_starts_no_process():
    assert False
"""
ENDLESS = """
import signal
from pathlib import Path

import pytest


@pytest.mark.processes
def test_waits():
    with (Path(__file__).parent / "begun").open("w"):
        signal.pause()
"""


def write_tests(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = processes\n")
    (folder / "test_made_up.py").write_text(text)
    return folder


def start(tests: Path, logs: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.suite.flaky", "--logs", str(logs), "--load", "1", "--workers", "0"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return tied.popen(
        [*command, *options, str(tests)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_ends(pids: Sequence[int]) -> list[int]:
    """Open a descriptor of each process, which can be read once the process has ended."""
    return [os.pidfd_open(pid) for pid in pids]


def have_ended(descriptors: Sequence[int]) -> bool:
    for descriptor in descriptors:
        ended, _, _ = select.select([descriptor], [], [], LIMIT_S)
        os.close(descriptor)
        if not ended:
            return False
    return True


@pytest.mark.processes
def test_a_test_that_fails_every_second_time_is_in_the_table_with_its_log(tmp_path: Path) -> None:
    tests = write_tests(tmp_path / "made-up", EVERY_SECOND_TIME)
    run = start(tests, tmp_path / "logs", "--times", "2")
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 1, output
    [log] = (tmp_path / "logs").glob("*/round-2/together/test_made_up.test_every_second_time.log")
    lines = output.splitlines()
    assert lines[0].startswith("round 1 of 2: 3 tests, 0 failed")
    assert lines[1].startswith("round 2 of 2: 3 tests, 1 failed")
    assert lines[2].split() == ["failures", "test"]
    assert lines[3].split() == ["1", "of", "2", "test_made_up.py::test_every_second_time"]
    assert lines[4].strip() == str(log)
    assert lines[5] == "3 tests, 6 runs, 1 failures"
    assert "assert len(counter.read_text()) % 2" in log.read_text()
    assert "what the test wrote" in log.read_text()


@pytest.mark.processes
def test_an_interrupted_run_shows_what_it_saw_and_leaves_no_process(tmp_path: Path) -> None:
    tests = write_tests(tmp_path / "made-up", ENDLESS)
    os.mkfifo(tests / "begun")
    run = start(tests, tmp_path / "logs")
    with (tests / "begun").open():
        descriptors = wait_for_ends(processes.children(run.pid))
    assert len(descriptors) == 2
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=LIMIT_S)
    assert have_ended(descriptors)
    assert run.returncode == 130, output
    assert output.splitlines()[0] == "interrupted; this is what was seen until now"
    assert output.splitlines()[-1] == "0 tests, 0 runs, 0 failures"


@pytest.mark.processes
def test_no_busy_loop_outlives_a_process_that_is_killed() -> None:
    code = "from tests.suite import load\nwith load.busy(2) as pids: print(*pids, flush=True); input()"
    with tied.popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        descriptors = wait_for_ends([int(pid) for pid in parent.stdout.readline().split()])
        parent.kill()
        assert len(descriptors) == 2
        assert have_ended(descriptors)


@pytest.mark.processes
def test_each_core_has_a_busy_loop_until_the_end_even_of_a_failure() -> None:
    cores = sorted(os.sched_getaffinity(0))

    def fail_under_load(found: list[int]) -> None:
        with load.busy(len(cores)) as pids:
            found += wait_for_ends(pids)
            assert [os.sched_getaffinity(pid) for pid in pids] == [{core} for core in cores]
            raise InterruptedError

    descriptors: list[int] = []
    with pytest.raises(InterruptedError):
        fail_under_load(descriptors)
    assert have_ended(descriptors)


@pytest.mark.processes
def test_a_run_without_tests_or_with_broken_ones_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    tests = write_tests(tmp_path / "made-up", "def test_starts_no_process(): pass\n")
    options = ["--logs", str(tmp_path / "logs"), "--load", "0", "--workers", "0", "--times", "1", str(tests)]
    assert main(options) == 2
    assert capsys.readouterr().err == "no test of shard 1/1 is selected by `-m 'processes'`\n"
    (tests / "test_made_up.py").write_text("import nowhere\n")
    assert main([*options[:1], str(tmp_path / "others"), *options[2:]]) == 2
    assert capsys.readouterr().err.startswith("pytest ended with exit code 2; ")


@pytest.mark.parametrize(
    "options", [["--times", "0"], ["--times", "often"], ["--load", "-1"], ["--shard", "5/4"], ["--workers", "two"]]
)
def test_bad_options_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "4", "0/4", "5/4", "1/0", "a/b", "1/4/2", "-1/4"])
def test_what_is_no_shard_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no shard; the second of four is 2/4"):
        shard_of(text)


def test_a_shard_is_its_number_and_how_many_there_are() -> None:
    assert shard_of("2/4") == (2, 4)


def test_the_table_begins_with_the_test_that_fails_most_often() -> None:
    outcomes = [
        *(Outcome("tests/a.py::test_a", n == 1, f"a-{n}.log" if n == 1 else "") for n in range(3)),
        *(Outcome("tests/b.py::test_b", n > 0, f"b-{n}.log" if n > 0 else "") for n in range(3)),
        *(Outcome("tests/c.py::test_c", False) for n in range(3)),
    ]
    assert [line.split() for line in table(outcomes).splitlines()] == [
        ["failures", "test"],
        ["2", "of", "3", "tests/b.py::test_b"],
        ["b-1.log"],
        ["b-2.log"],
        ["1", "of", "3", "tests/a.py::test_a"],
        ["a-1.log"],
        ["3", "tests,", "9", "runs,", "3", "failures"],
    ]
    assert table(outcomes[-3:]) == "1 tests, 3 runs, 0 failures\n"


def report(test: str, when: str, text: str = "", output: str = "") -> pytest.TestReport:
    outcome = "failed" if text else "passed"
    sections = [("Captured stdout call", output)] if output else []
    return pytest.TestReport(test, ("", 0, ""), {}, outcome, text or None, when, sections=sections, duration=0.5)  # type: ignore[arg-type]


def test_the_log_of_a_test_has_all_of_its_failures(tmp_path: Path) -> None:
    logs = FailureLogs(tmp_path)
    logs.pytest_runtest_logreport(report("tests/a.py::test_a[x/y]", "setup"))
    logs.pytest_runtest_logreport(report("tests/a.py::test_a[x/y]", "call", "AssertionError: one", "printed"))
    logs.pytest_runtest_logreport(report("tests/a.py::test_a[x/y]", "teardown", "OSError: two"))
    logs.pytest_runtest_logreport(report("tests/a.py::test_b", "call"))
    logs.pytest_runtest_logreport(report("tests/a.py::test_b", "teardown"))
    [first, second] = read_outcomes(tmp_path)
    assert (first.test, first.failed) == ("tests/a.py::test_a[x/y]", True)
    assert second == Outcome("tests/a.py::test_b", False)
    text = Path(first.log).read_text()
    assert text.index("call failed after 0.50 s") < text.index("AssertionError: one") < text.index("printed")
    assert text.index("printed") < text.index("OSError: two")


def test_a_test_whose_worker_died_has_failed(tmp_path: Path) -> None:
    FailureLogs(tmp_path).pytest_runtest_logreport(report("tests/a.py::test_a", "???", "worker 'gw0' crashed"))
    [outcome] = read_outcomes(tmp_path)
    assert outcome.failed
    assert "worker 'gw0' crashed" in Path(outcome.log).read_text()


def test_logs_of_tests_whose_names_look_alike_have_names_of_their_own() -> None:
    taken: list[Path] = []
    for test in ("tests/a.py::test_a[x y]", "tests/a.py::test_a[x/y]", "e2e/a.py::test_a[x-y]"):
        taken.append(Path("logs") / file_name(test, taken))
    assert len({path.name for path in taken}) == 3
    assert taken[0].name == "a.test_a-x-y.log"
