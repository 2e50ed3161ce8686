"""Which seconds belong to a test, and which to the fixtures that it shares with others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.suite.durations import Rest
from tests.suite.measuring import Results, Stopwatch, shared_fixture

TEST = "tests/trainer/test_parity.py::test_row[1]"
TABLE = "tests/trainer/test_parity.py::table"


def fixture(name: str, scope: str, baseid: str) -> Any:
    return SimpleNamespace(argname=name, scope=scope, baseid=baseid)


@pytest.mark.parametrize(
    ("name", "scope", "baseid", "recorded"),
    [
        ("table", "module", "tests/trainer/test_parity.py", TABLE),
        ("world", "module", "tests/trainer", "tests/trainer/test_parity.py::world"),
        ("ranks", "session", "tests/trainer", "tests/trainer::ranks"),
        ("make_world", "function", "tests/trainer/test_parity.py", None),
        ("tmp_path_factory", "session", "", None),
    ],
)
def test_a_shared_fixture_belongs_to_the_file_that_uses_it_or_to_where_all_find_it(
    name: str, scope: str, baseid: str, recorded: str | None
) -> None:
    assert shared_fixture(fixture(name, scope, baseid), "tests/trainer/test_parity.py") == recorded


def test_what_a_fixture_makes_within_another_one_is_counted_once() -> None:
    times = iter([0.0, 10.0, 14.0, 15.0, 20.0, 20.5])
    stopwatch = Stopwatch(lambda: next(times))
    stopwatch.start("table")
    stopwatch.start("ranks")
    stopwatch.stop()
    stopwatch.stop()
    stopwatch.start("table")
    stopwatch.stop()
    assert stopwatch.take() == {"ranks": 4.0, "table": 11.5}
    assert stopwatch.take() == {}


def report(when: str, duration: float, **more: Any) -> pytest.TestReport:
    outcome = more.pop("outcome", "passed")
    made = pytest.TestReport(more.pop("test", TEST), ("", 0, ""), {}, outcome, None, when, duration=duration)  # type: ignore[arg-type]
    vars(made).update(kind="process", **more)
    return made


def test_a_test_takes_its_set_up_call_and_teardown_without_shared_fixtures() -> None:
    results = Results()
    results.pytest_runtest_logreport(report("setup", 137.5, shared_s={TABLE: 137.0}))
    results.pytest_runtest_logreport(report("call", 0.25))
    results.pytest_runtest_logreport(report("teardown", 2.25, shared_s={TABLE: 2.0}))
    assert results.seconds == {TEST: pytest.approx(1.0)}
    assert results.kinds == {TEST: "process"}
    assert results.fixtures == {TABLE: 139.0}


def test_of_a_fixture_that_each_worker_makes_the_longest_counts() -> None:
    results = Results()
    for worker, seconds in (("gw0", 4.0), ("gw1", 5.0)):
        results.pytest_runtest_logreport(
            report("setup", 6.0, shared_s={"tests/trainer::ranks": seconds}, worker_id=worker)
        )
    assert results.fixtures == {"tests/trainer::ranks": 5.0}
    assert results.fixtures_of_all_workers_s == 9.0


def test_a_failed_test_is_not_in_the_record() -> None:
    results = Results()
    results.pytest_runtest_logreport(report("call", 9.0, outcome="failed"))
    results.pytest_runtest_logreport(report("call", 0.01, test="tests/a.py::test_b"))
    assert results.durations().tests == {}
    assert results.durations().rest == {"tests/a.py": Rest(1, 0.01)}
