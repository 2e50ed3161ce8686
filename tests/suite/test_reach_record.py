"""The file of the record, which units are recorded, and what a recording says."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.suite.reach import record
from tests.suite.reach.checkout import Checkout, blob_of, listings
from tests.suite.reach.collection import Test
from tests.suite.reach.facts import read_facts
from tests.suite.reach.graph import Graph
from tests.suite.reach.record import missed_by, plan, read_sources, select
from tests.suite.reach.recorder import Job
from tests.suite.reach.recordfile import BadRecord, Record, Text, Unit, load, save

A, B, C = Text("operator/a.py", "1"), Text("operator/b.py", "2"), Text("docs/c.md", "3")
OWN = Text("tests/test_it.py", "4")
UNITS = {
    "tests/test_it.py": Unit(3, {A: frozenset({0, 2, 70})}, frozenset({C}), frozenset({OWN}), frozenset({A, B})),
    "tests/test_it.py::test[x y]": Unit(1, {}, frozenset(), frozenset({OWN}), frozenset({A}), complete=False),
}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(Record(UNITS), tmp_path / "record.json.gz")
    assert load(tmp_path / "record.json.gz") == Record(UNITS)


def test_the_same_record_is_the_same_file_whatever_the_order(tmp_path: Path) -> None:
    save(Record(UNITS), tmp_path / "one.json.gz")
    save(Record(dict(reversed(UNITS.items()))), tmp_path / "two.json.gz")
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_no_file_is_an_empty_record(tmp_path: Path) -> None:
    assert load(tmp_path / "record.json.gz") == Record()


@pytest.mark.parametrize("content", ["", "no gzip", "{", "{}", "[]"])
def test_a_file_that_is_no_record_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    raw = content.encode()
    (tmp_path / "record.json.gz").write_bytes(gzip.compress(raw) if content[:1] in "{[" and content else raw)
    with pytest.raises(BadRecord, match=r"record\.json\.gz isn't a record .*; `make reach` writes one"):
        load(tmp_path / "record.json.gz")


def test_a_record_with_other_blocks_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "record.json.gz").write_bytes(gzip.compress(b'{"scheme": 0}'))
    assert load(tmp_path / "record.json.gz") == Record()


def test_tests_that_start_processes_and_take_long_are_units_of_their_own() -> None:
    tests = [
        Test("t.py::fast", starts_processes=True, shares_fixture=False),
        Test("t.py::slow", starts_processes=True, shares_fixture=False),
        Test("t.py::sharing", starts_processes=True, shares_fixture=True),
        Test("u.py::pure", starts_processes=False, shares_fixture=False),
    ]
    seconds = {"t.py::fast": 0.1, "t.py::slow": 9.0, "t.py::sharing": 9.0, "u.py::pure": 9.0}
    assert plan(tests, seconds) == [
        Job("t.py", ("t.py", "--deselect=t.py::slow"), 2),
        Job("t.py::slow", ("t.py::slow",), 1),
        Job("u.py", ("u.py",), 1),
    ]
    assert [job.unit for job in plan(tests, {})] == ["t.py", "u.py"]


def test_only_what_is_missing_or_stale_is_recorded_again() -> None:
    jobs = [Job(unit, (unit,), 1) for unit in ("tests/test_it.py", "tests/test_it.py::test[x y]", "tests/test_new.py")]
    known, stale = Record(UNITS), frozenset({"tests/test_it.py"})
    assert select(jobs, known, stale, [], every=False) == [jobs[0], jobs[2]]
    assert select(jobs, known, stale, [], every=True) == jobs
    assert select(jobs, known, stale, ["new"], every=False) == [jobs[2]]
    assert select(jobs, known, stale, ["test[x y]"], every=False) == [jobs[1]]


def test_a_test_consists_of_its_file_and_of_what_has_no_probes() -> None:
    sources = {
        "tests/conftest.py": "from tests.suite import plugin\nimport hypothesis",
        "tests/suite/plugin.py": "",
        "tests/model.py": "from hypothesis.stateful import RuleBasedStateMachine",
        "tests/test_a.py": "from tests import model",
        "tests/test_b.py": "",
    }
    graph = Graph({p: read_facts(t) for p, t in sources.items()}, [])
    found = read_sources(graph, sources)
    assert {text.path for text in found["tests/test_a.py"].own} == {"tests/conftest.py", "tests/test_a.py"}
    assert found["tests/test_a.py"].searches
    assert not found["tests/test_b.py"].searches


def test_what_a_unit_executed_though_the_import_graph_does_not_know_is_told() -> None:
    graph = Graph({"tests/test_it.py": read_facts("import os"), "operator/a.py": read_facts("def f():\n    pass")}, [])
    unit = UNITS["tests/test_it.py"]
    names = {"operator/a.py": ["", "f", "f", *[""] * 68]}
    assert missed_by(graph, "tests/test_it.py", unit, names) == ["operator/a.py: f", "operator/a.py: module level"]
    graph = Graph({**graph.facts, "tests/test_it.py": read_facts("import a\na.f()")}, [])
    assert missed_by(graph, "tests/test_it.py", unit, names) == []


def test_a_hash_is_the_one_of_git() -> None:
    assert blob_of(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_a_listing_changes_with_the_names_in_a_folder_alone() -> None:
    one, two = listings(["a/b/c.py", "a/d.py"]), listings(["a/b/e.py", "a/d.py"])
    assert set(one) == {".", "a", "a/b"}
    assert {folder for folder in one if one[folder] != two[folder]} == {"a/b"}


def test_a_pattern_that_no_test_matches_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = Checkout(tmp_path)
    checkout.git("init")
    monkeypatch.setattr(record, "Checkout", lambda: checkout)
    monkeypatch.setattr(record, "collect", lambda root, folder: [])
    assert record.main(["--record", str(tmp_path / "record.json.gz"), "--only", "nonsense"]) == 2
    assert capsys.readouterr().err == "no test matches 'nonsense'\n"
    assert not (tmp_path / "record.json.gz").exists()
