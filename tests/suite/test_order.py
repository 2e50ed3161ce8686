"""Groups of tests, their order, and shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.suite.durations import Durations, Rest
from tests.suite.kinds import CLUSTER, PROCESS, SIMULATED
from tests.suite.order import ALONE, LONG_S, UNKNOWN_S, Case, Group, group_of, longest_first, measure, split, sums

FILE = "tests/trainer/test_parity.py"
TABLE = f"{FILE}::table"


def names(cases: list[Case], known: Durations) -> list[str]:
    """The ids of the cases in the order in which they run."""
    return [cases[n].id for n in longest_first(cases, [group_of(case, known) for case in cases], known)]


@pytest.mark.parametrize("kind", [PROCESS, CLUSTER], ids=lambda kind: kind.name)
def test_a_test_that_starts_processes_or_pods_is_a_group_of_its_own(kind: object) -> None:
    assert group_of(Case(f"{FILE}::test_a[1]", kind), Durations()) == f"{FILE}::test_a[1]"  # type: ignore[arg-type]


def test_short_tests_in_the_pytest_process_are_grouped_by_file() -> None:
    known = Durations({f"{FILE}::test_a": LONG_S - 0.1})
    assert group_of(Case(f"{FILE}::test_a"), known) == FILE
    assert group_of(Case(f"{FILE}::test_new", SIMULATED), known) == FILE


def test_a_long_test_in_the_pytest_process_is_a_group_of_its_own() -> None:
    known = Durations({f"{FILE}::test_a": LONG_S})
    assert group_of(Case(f"{FILE}::test_a"), known) == f"{FILE}::test_a"


def test_tests_that_share_an_expensive_fixture_stay_together() -> None:
    known = Durations({f"{FILE}::test_a": 30.0}, {}, {TABLE: 137.0})
    assert group_of(Case(f"{FILE}::test_a", PROCESS, (TABLE,)), known) == FILE


def test_tests_that_use_what_one_of_them_has_computed_stay_together() -> None:
    cases = [Case(f"{FILE}::{name}", PROCESS, together="2-ranks") for name in ("test_a", "test_b")]
    assert [group_of(case, Durations()) for case in cases] == [f"{FILE}[2-ranks]"] * 2


def test_a_cheap_shared_fixture_holds_nothing_together() -> None:
    case = Case(f"{FILE}::test_a", PROCESS, (TABLE,))
    assert group_of(case, Durations({case.id: 3.0}, {}, {TABLE: 0.2})) == case.id
    assert group_of(case, Durations({case.id: 3.0})) == case.id


def test_a_shared_fixture_of_a_file_that_was_never_measured_counts_as_expensive() -> None:
    assert group_of(Case(f"{FILE}::test_a", PROCESS, (TABLE,)), Durations()) == FILE


def test_the_longest_group_comes_first_and_a_group_keeps_its_order() -> None:
    known = Durations(
        {"tests/b.py::test_1": 1.0, "tests/b.py::test_2": 1.5, "tests/c.py::test_p": 2.2, "tests/c.py::test_q": 9.0},
        {"tests/a.py": Rest(2, 0.06)},
    )
    cases = [
        Case("tests/a.py::test_x"),
        Case("tests/a.py::test_y"),
        Case("tests/b.py::test_1"),
        Case("tests/b.py::test_2"),
        Case("tests/c.py::test_p", PROCESS),
        Case("tests/c.py::test_q", PROCESS),
    ]
    assert names(cases, known) == [cases[n].id for n in (5, 2, 3, 4, 0, 1)]


def test_what_was_never_measured_comes_before_all_else() -> None:
    known = Durations({"tests/a.py::test_1": 50.0}, {"tests/b.py": Rest(1, 0.01)})
    new = [Case("tests/a.py::test_new", PROCESS), Case("tests/new.py::test_2"), Case("tests/b.py::test_4")]
    cases = [Case("tests/a.py::test_1", PROCESS), Case("tests/b.py::test_3"), *new]
    # Of the two tests of b.py the record knows one, without its name: the file as a whole is unknown.
    assert names(cases, known)[-1] == "tests/a.py::test_1"


def test_tests_that_need_the_machine_alone_come_last_though_they_are_long_or_unknown() -> None:
    known = Durations({"tests/a.py::test_long": 50.0, "tests/a.py::test_short": 1.0}, {"tests/a.py": Rest(1, 0.01)})
    cases = [Case(f"tests/{name}", PROCESS) for name in ("a.py::test_long", "new.py::test_new", "a.py::test_short")]
    assert longest_first(cases, [ALONE, ALONE, cases[2].id], known) == [2, 0, 1]


def test_a_shared_fixture_counts_once_for_its_group() -> None:
    known = Durations({}, {FILE: Rest(3, 0.03)}, {TABLE: 137.0})
    cases = [Case(f"{FILE}::test_a[{n}]", PROCESS, (TABLE,)) for n in range(3)]
    assert measure(cases, [FILE] * 3, known) == {FILE: Group(FILE, pytest.approx(137.03), unknown=False)}


def test_a_test_without_a_duration_counts_as_the_mean_of_the_short_ones_of_its_file() -> None:
    known = Durations({}, {"tests/a.py": Rest(4, 0.08)})
    cases = [Case("tests/a.py::test_a"), Case("tests/new.py::test_b")]
    found = measure(cases, ["tests/a.py", "tests/new.py"], known)
    assert found["tests/a.py"].seconds == pytest.approx(0.02)
    assert found["tests/new.py"] == Group("tests/new.py", UNKNOWN_S, unknown=True)


@given(st.lists(st.floats(0.0, 60.0), max_size=60))
def test_groups_come_by_descending_duration(seconds: list[float]) -> None:
    cases = [Case(f"tests/a.py::test_{n}", PROCESS) for n in range(len(seconds))]
    known = Durations({case.id: spent for case, spent in zip(cases, seconds, strict=True)})
    assert [known.tests[name] for name in names(cases, known)] == sorted(seconds, reverse=True)


def test_neither_of_two_workers_idles_at_the_end_although_the_long_test_is_collected_last() -> None:
    seconds = {**{f"tests/a.py::test_{n}": 1.0 for n in range(6)}, "tests/a.py::test_long": 6.0}
    ordered = names([Case(name, PROCESS) for name in seconds], Durations(seconds))
    free = [0.0, 0.0]
    for name in ordered:
        free[free.index(min(free))] += seconds[name]
    assert free == [6.0, 6.0]


GROUPS = st.dictionaries(st.text("abcde", min_size=1, max_size=3), st.floats(0.0, 60.0)).map(
    lambda found: [Group(name, seconds) for name, seconds in found.items()]
)


@given(GROUPS, st.integers(1, 5))
def test_each_group_is_in_exactly_one_shard(groups: list[Group], shards: int) -> None:
    parts = split(groups, shards)
    assert len(parts) == shards
    assert sorted(name for part in parts for name in part) == sorted(group.name for group in groups)


@given(GROUPS, st.integers(1, 5))
def test_shards_differ_by_no_more_than_the_longest_group(groups: list[Group], shards: int) -> None:
    seconds = {group.name: group.seconds for group in groups}
    parts = [sum(seconds[name] for name in part) for part in split(groups, shards)]
    assert max(parts) - min(parts) <= max(seconds.values(), default=0.0) + 1e-6


@given(GROUPS, st.randoms(use_true_random=False))
def test_shards_do_not_depend_on_the_order_of_the_tests(groups: list[Group], random: object) -> None:
    shuffled = list(groups)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert split(shuffled, 4) == split(groups, 4)


def test_seconds_are_summed_by_kind() -> None:
    seconds = {"a": 1.0, "b": 2.0, "c": 4.0}
    assert sums(seconds, {"a": "pure", "b": "process", "c": "process"}) == {"pure": (1, 1.0), "process": (2, 6.0)}
