"""The check of budgets, on made-up durations and test files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suite import sources
from tests.suite.budgets import MOST_UNKNOWN, NEAR, complaints, describe, main, over_budget, overview, staleness
from tests.suite.durations import Durations, Rest, save
from tests.suite.kinds import CLUSTER, FIXTURE, KINDS, PROCESS, PURE, SIMULATED, kind_of
from tests.suite.listing import parse

TESTS = {
    "tests/api/test_job.py": "def test_a(): pass\ndef test_b(): pass\n",
    "tests/agent/test_run.py": (
        "import pytest\n@pytest.mark.processes\ndef test_starts(): pass\ndef test_computes(): pass\n"
    ),
    "tests/e2e/test_whole.py": "import pytest\npytestmark = [pytest.mark.processes]\nasync def test_run(): pass\n",
    "tests/planning/test_machine.py": "TestJob = Machine.TestCase\ndef helper(): pass\n",
    "e2e/test_pods.py": "def test_pod(): pass\n",
}
KNOWN = {file: sources.parse(text) for file, text in TESTS.items()}


@pytest.mark.parametrize(
    ("test", "processes", "kind"),
    [
        ("tests/api/test_job.py::test_a", False, PURE),
        ("tests/simulation/test_crashes.py::test_a[x]", False, SIMULATED),
        ("tests/simulation/test_crashes.py::test_a[x]", True, PROCESS),
        ("tests/agent/test_run.py::test_a", True, PROCESS),
        ("e2e/test_pods.py::test_pod", False, CLUSTER),
    ],
)
def test_the_kind_follows_from_the_file_and_the_marker(test: str, processes: bool, kind: object) -> None:
    assert kind_of(test, processes) is kind


def test_the_marker_is_read_at_the_function_and_at_the_top_of_the_file() -> None:
    assert sources.starts_processes(KNOWN, "tests/agent/test_run.py::test_starts[a[b]]")
    assert not sources.starts_processes(KNOWN, "tests/agent/test_run.py::test_computes")
    assert sources.starts_processes(KNOWN, "tests/e2e/test_whole.py::test_run")
    assert not sources.starts_processes(KNOWN, "tests/gone.py::test_run")


def test_a_test_is_defined_by_its_function_or_its_class() -> None:
    assert sources.defines(KNOWN, "tests/api/test_job.py::test_a[x::y]")
    assert sources.defines(KNOWN, "tests/planning/test_machine.py::TestJob::runTest")
    assert sources.defines(KNOWN, "tests/api/test_job.py")
    assert not sources.defines(KNOWN, "tests/api/test_job.py::test_c")
    assert not sources.defines(KNOWN, "tests/gone.py::test_a")


def test_the_tests_of_this_repository_are_read() -> None:
    found = sources.read(Path(__file__).parents[2])
    assert "test_the_tests_of_this_repository_are_read" in found["tests/suite/test_budgets.py"].functions
    assert sources.starts_processes(
        found, "tests/runtime/test_replicas.py::" + next(iter(found["tests/runtime/test_replicas.py"].functions))
    )


def test_each_kind_has_its_own_budget() -> None:
    record = Durations(
        {
            "tests/api/test_job.py::test_a": PURE.budget_s,
            "tests/api/test_job.py::test_b": PURE.budget_s + 0.01,
            "tests/agent/test_run.py::test_starts": PROCESS.budget_s + 1,
            "tests/agent/test_run.py::test_computes": PURE.budget_s - 0.1,
            "e2e/test_pods.py::test_pod": CLUSTER.budget_s,
        },
        {},
        {"tests/trainer::ranks": FIXTURE.budget_s + 1, "tests/trainer::text": FIXTURE.budget_s},
    )
    assert {name: kind.name for name, (_, kind) in over_budget(record, KNOWN).items()} == {
        "tests/api/test_job.py::test_b": "pure",
        "tests/agent/test_run.py::test_starts": "process",
        "tests/trainer::ranks": "shared fixture",
    }


OVER = {"tests/api/test_job.py::test_b": (3.0, PURE), "tests/agent/test_run.py::test_starts[a]": (20.0, PROCESS)}


def test_a_test_over_its_budget_is_a_line_with_both_numbers() -> None:
    assert complaints(OVER, OVER, []) == [
        "tests/api/test_job.py::test_b: 3.00 s; a pure test may take 1 s",
        "tests/agent/test_run.py::test_starts[a]: 20.00 s; a process test may take 12 s",
    ]


def test_a_test_that_is_allowed_over_its_budget_is_not_named() -> None:
    allowed = parse(
        "# It searches.\ntests/api/test_job.py::test_b\n# It waits.\ntests/agent/test_run.py::test_starts\n"
    )
    assert complaints(OVER, OVER, allowed) == []


def test_an_entry_that_nothing_needs_is_named() -> None:
    allowed = parse("# It searches.\ntests/api\ntests/api/test_job.py::test_a\n")
    over = {"tests/api/test_job.py::test_b": (3.0, PURE)}
    assert complaints(over, over, allowed) == [
        "over_budget.txt: line 3: tests/api/test_job.py::test_a is well within its budget, or gone; remove it"
    ]


def test_an_entry_of_a_test_near_its_budget_may_stay() -> None:
    allowed = parse("# It searches.\ntests/api/test_job.py::test_a\n")
    record = Durations({"tests/api/test_job.py::test_a": 0.9 * PURE.budget_s})
    assert complaints(over_budget(record, KNOWN), over_budget(record, KNOWN, NEAR), allowed) == []


def test_an_entry_without_a_reason_is_named() -> None:
    over = {"tests/api/test_job.py::test_b": (3.0, PURE)}
    [line] = complaints(over, over, parse("tests/api/test_job.py\n"))
    assert line.startswith("over_budget.txt: line 1: tests/api/test_job.py has no reason")


COMPLETE = Durations(
    {"tests/api/test_job.py::test_a": 0.5, "tests/e2e/test_whole.py::test_run": 9.0},
    {"tests/api/test_job.py": Rest(1, 0.01), "tests/agent/test_run.py": Rest(2, 0.02)},
)


def test_a_complete_record_is_not_stale_and_folders_never_measured_do_not_count() -> None:
    assert describe(staleness(COMPLETE, KNOWN)) == []


def test_a_record_that_lacks_tests_or_names_gone_ones_says_so() -> None:
    record = Durations({"tests/api/test_job.py::test_gone[1]": 0.5}, COMPLETE.rest)
    stale = staleness(record, KNOWN)
    assert stale.lacking == {"tests/api/test_job.py": 1, "tests/e2e/test_whole.py": 1}
    assert list(stale.gone) == ["tests/api/test_job.py::test_gone[1]"]
    assert stale.share == pytest.approx(3 / 5)
    assert describe(stale)[-1].endswith("run `make durations`")


def check(tmp_path: Path, record: Durations, allowed: str = "", *arguments: str) -> int:
    for file, text in TESTS.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    save(record, tmp_path / "durations.json")
    (tmp_path / "allowed.txt").write_text(allowed)
    options = {"--durations": "durations.json", "--allowed": "allowed.txt", "--root": "."}
    return main([*arguments, *(word for option, name in options.items() for word in (option, str(tmp_path / name)))])


def test_the_check_passes_within_the_budgets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, COMPLETE, "", "--check") == 0
    assert capsys.readouterr().out == ""


def test_the_check_fails_with_a_line_for_a_test_over_its_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Durations({**COMPLETE.tests, "tests/e2e/test_whole.py::test_run": 12.5}, COMPLETE.rest)
    assert check(tmp_path, slow, "", "--check") == 1
    assert capsys.readouterr().out == "tests/e2e/test_whole.py::test_run: 12.50 s; a process test may take 12 s\n"
    assert check(tmp_path, slow, "# It trains for long.\ntests/e2e/test_whole.py", "--check") == 0


def test_the_check_fails_for_a_record_that_knows_too_few_tests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = Durations({}, {"tests/api/test_job.py": Rest(2, 0.02)})
    assert staleness(few, KNOWN).share > MOST_UNKNOWN
    assert check(tmp_path, few, "", "--check") == 1
    assert "run `make durations`" in capsys.readouterr().out


def test_a_slightly_stale_record_is_a_message_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = "".join(f"def test_{n}(): pass\n" for n in range(40))
    (tmp_path / "tests" / "api").mkdir(parents=True)
    (tmp_path / "tests" / "api" / "test_many.py").write_text(many)
    stale = Durations(COMPLETE.tests, {**COMPLETE.rest, "tests/api/test_many.py": Rest(39, 0.4)})
    assert check(tmp_path, stale, "", "--check") == 0
    assert "tests/api/test_many.py: 1 test functions have no duration yet" in capsys.readouterr().out


def test_without_durations_the_check_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "--durations", str(tmp_path / "missing.json")]) == 2
    assert "`make durations` writes them" in capsys.readouterr().err


def test_the_table_has_a_line_for_each_kind_with_the_reason() -> None:
    lines = overview(COMPLETE, KNOWN).splitlines()
    assert [line[:16].strip() for line in lines[1:-1]] == [*(kind.name for kind in KINDS), FIXTURE.name]
    assert PROCESS.why in lines[3]
    assert "9.0 s" in lines[3]
    assert lines[-1].startswith("3 more tests")
