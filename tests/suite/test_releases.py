"""Lists of tests with reasons, and the committed list of the tests that guard releases only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suite import sources
from tests.suite.listing import Entry, matcher, parse, without_reason, without_test
from tests.suite.plugin import COLLECTED

ROOT = Path(__file__).parents[2]
COMMITTED = parse((ROOT / "tests" / "suite" / "releases.txt").read_text())
LARGEST_SHARE = 0.05

TEXT = """\
# What this list is for.

# A cold build takes minutes,
# and the warm one is tested elsewhere.
tests/docker/test_cold.py
tests/docker/test_images.py::test_equal[cold]

tests/docker/test_unexplained.py
# Another reason.
tests/soak/
"""


def test_a_comment_is_the_reason_of_the_lines_below_it_until_an_empty_line() -> None:
    cold = "A cold build takes minutes, and the warm one is tested elsewhere."
    assert parse(TEXT) == [
        Entry("tests/docker/test_cold.py", cold, 5),
        Entry("tests/docker/test_images.py::test_equal[cold]", cold, 6),
        Entry("tests/docker/test_unexplained.py", "", 8),
        Entry("tests/soak/", "Another reason.", 10),
    ]


def test_the_matcher_of_a_list_says_what_its_entries_say() -> None:
    entries = [Entry(prefix, "", 1) for prefix in ("tests/a/test_x.py::test_one[b", "tests/b/", "tests/c")]
    names = [
        "a/test_x.py::test_one[b-1]",
        "a/test_x.py::test_one",
        "b/d/test_y.py::test_two",
        "c/test_z.py::test_three",
    ]
    is_listed = matcher(entries)
    for name in [f"tests/{name}" for name in (*names, "ab/test_y.py::test_two", "cd/test_z.py::test_three")]:
        assert is_listed(name) == any(entry.matches(name) for entry in entries), name
    assert [is_listed(f"tests/{name}") for name in names] == [True, False, True, True]


def test_a_line_without_a_reason_is_named() -> None:
    assert without_reason(parse(TEXT)) == [
        "line 8: tests/docker/test_unexplained.py has no reason; write it as a comment above the line"
    ]


@pytest.mark.parametrize(
    ("prefix", "matches"),
    [
        ("tests/a/test_x.py::test_one[a-b]", True),
        ("tests/a/test_x.py::test_one[a", True),
        ("tests/a/test_x.py::test_one", True),
        ("tests/a/test_x.py", True),
        ("tests/a/", True),
        ("tests/a", True),
        ("tests/a/test_x.py::test_on", False),
        ("tests/a/test", False),
        ("tests/a/test_x.py::test_one[b", False),
        ("tests/a/test_x.py::test_one[a-b]c", False),
    ],
)
def test_a_line_means_whole_names_and_any_beginning_of_parameters(prefix: str, matches: bool) -> None:
    assert Entry(prefix, "why", 1).matches("tests/a/test_x.py::test_one[a-b]") is matches


def test_a_line_that_matches_no_test_is_named() -> None:
    assert without_test(parse("# Why.\ntests/a.py::test_b\ntests/a.py"), ["tests/a.py::test_a"]) == [
        "line 2: tests/a.py::test_b matches no test; remove it"
    ]


def test_each_line_of_the_release_list_has_a_reason_and_a_test_function() -> None:
    assert without_reason(COMMITTED) == []
    names = [f"{file}::{name}" for file, source in sources.read(ROOT).items() for name in source.names]
    functions = [Entry(entry.prefix.partition("[")[0], entry.reason, entry.line) for entry in COMMITTED]
    assert without_test(functions, names) == []


def test_each_line_of_the_release_list_matches_a_test_and_it_holds_few_tests(request: pytest.FixtureRequest) -> None:
    collected = request.config.stash[COLLECTED]
    if not collected.whole:
        pytest.skip("only a run of the whole suite knows all parameters")
    own = [entry for entry in COMMITTED if not entry.prefix.startswith("e2e")]
    assert without_test(own, collected.ids) == []
    listed = [test for test in collected.ids if any(entry.matches(test) for entry in own)]
    assert len(listed) <= LARGEST_SHARE * len(collected.ids), f"{len(listed)} of {len(collected.ids)} tests are listed"
