"""The record of durations: what is listed, how runs are combined, and the command that does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suite.durations import (
    COMMITTED,
    BadDurations,
    Durations,
    Rest,
    combine,
    dump,
    load,
    main,
    replace,
    save,
    summarise,
)

MEASURED = {"tests/a.py::test_long": 3.14159, "tests/a.py::test_x": 0.02, "tests/a.py::test_y": 0.0349}


def test_short_tests_are_one_number_for_their_file() -> None:
    record = summarise(MEASURED, {"tests/a.py::table": 2.468, "tests/a.py::folder": 0.001})
    assert record == Durations(
        {"tests/a.py::test_long": 3.14}, {"tests/a.py": Rest(2, 0.05)}, {"tests/a.py::table": 2.47}
    )
    assert record.count == 3


def test_tests_that_are_left_out_take_no_time() -> None:
    record = Durations({"tests/a.py::test_1": 1.0, "tests/a.py::test_2": 2.0}, {"tests/a.py": Rest(2, 0.04)})
    assert record.without(lambda test: test.endswith("2")) == Durations({"tests/a.py::test_1": 1.0}, record.rest)


def test_the_parts_of_a_run_are_added() -> None:
    first = Durations({"tests/a.py::test_1": 1.0}, {"tests/a.py": Rest(2, 0.04)}, {"tests/trainer::ranks": 4.0})
    second = Durations({"tests/a.py::test_2": 2.0}, {"tests/a.py": Rest(1, 0.03)}, {"tests/trainer::ranks": 3.0})
    assert combine([first, second]) == Durations(
        {"tests/a.py::test_1": 1.0, "tests/a.py::test_2": 2.0},
        {"tests/a.py": Rest(3, 0.07)},
        {"tests/trainer::ranks": 4.0},
    )


def test_a_measured_file_is_replaced_whole_and_others_stay() -> None:
    old = Durations(
        {"tests/a.py::test_was_renamed": 1.0, "tests/b.py::test_b": 2.0, "e2e/c.py::test_c": 30.0},
        {"tests/a.py": Rest(9, 0.2), "tests/b.py": Rest(1, 0.01)},
        {"tests/a.py::table": 5.0, "tests/b.py::table": 6.0, "tests/trainer::ranks": 4.0},
    )
    new = Durations({"tests/a.py::test_a": 1.5}, {}, {"tests/trainer::ranks": 3.0})
    assert replace(old, new, lambda path: True) == Durations(
        {"tests/a.py::test_a": 1.5, "tests/b.py::test_b": 2.0, "e2e/c.py::test_c": 30.0},
        {"tests/b.py": Rest(1, 0.01)},
        {"tests/b.py::table": 6.0, "tests/trainer::ranks": 3.0},
    )


def test_a_file_that_is_gone_leaves_the_record() -> None:
    old = Durations({"tests/gone.py::test_a": 1.0}, {"tests/gone.py": Rest(1, 0.01)}, {"tests/gone.py::table": 1.0})
    assert replace(old, Durations(), lambda path: path != "tests/gone.py") == Durations()


def test_what_is_written_is_read_again_the_same(tmp_path: Path) -> None:
    record = summarise({**MEASURED, 'tests/a.py::test_quoted["é"]': 0.5}, {"tests/a.py::table": 2.0})
    save(record, tmp_path / "folder" / "durations.json")
    assert load(tmp_path / "folder" / "durations.json") == record


def test_each_entry_is_a_line_and_lines_are_sorted() -> None:
    record = Durations({"tests/b.py::test": 2.0, "tests/a.py::test": 1.0}, {"tests/a.py": Rest(2, 0.5)}, {})
    assert dump(record) == (
        '{\n"tests": {\n  "tests/a.py::test": 1.0,\n  "tests/b.py::test": 2.0\n},\n'
        '"rest": {\n  "tests/a.py": [2, 0.5]\n},\n"fixtures": {}\n}\n'
    )


def test_without_a_record_nothing_is_known(tmp_path: Path) -> None:
    assert load(tmp_path / "missing.json") == Durations()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tests": {"a": "long"}, "rest": {}, "fixtures": {}}', "not JSON"])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "durations.json"
    file.write_text(text)
    with pytest.raises(BadDurations, match=r"durations\.json isn't a record of durations"):
        load(file)


def test_the_committed_record_is_written_as_the_command_writes_it() -> None:
    assert dump(load(COMMITTED)) == COMMITTED.read_text()


def test_the_command_puts_the_parts_of_a_run_into_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(Durations({"tests/suite/test_order.py::test_a": 1.0}), tmp_path / "one.json")
    save(Durations({"tests/suite/test_order.py::test_b": 2.0}), tmp_path / "two.json")
    into = tmp_path / "all.json"
    save(Durations({"tests/suite/test_order.py::test_c": 3.0, "tests/gone.py::test_d": 4.0}), into)
    assert main([str(tmp_path / "one.json"), str(tmp_path / "two.json"), "--into", str(into)]) == 0
    assert load(into).tests == {"tests/suite/test_order.py::test_a": 1.0, "tests/suite/test_order.py::test_b": 2.0}
    assert "2 tests measured" in capsys.readouterr().out


def test_the_command_names_a_record_that_is_missing_or_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "missing.json"), "--into", str(tmp_path / "all.json")]) == 2
    assert "missing.json doesn't exist" in capsys.readouterr().err
    (tmp_path / "broken.json").write_text("{")
    assert main([str(tmp_path / "broken.json"), "--into", str(tmp_path / "all.json")]) == 2
    assert "broken.json isn't a record of durations" in capsys.readouterr().err
    assert not (tmp_path / "all.json").exists()
