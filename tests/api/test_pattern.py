"""Patterns of rules: what Python's own expressions say of the same text, in time proportional to it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster_operator.api.recovery_rules import RuleSpec
from trainmaster_operator.api.rule_pattern import LIMIT, NESTED, BadPattern, Pattern

ATOMS = st.sampled_from(
    ["a", "b", "é", ".", r"\d", r"\W", r"\s", "[ab]", "[^a]", "[a-c]", r"[\d-]", "[]a]", "^", "$", r"\."]
)


def grown(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(parts, parts).map("".join),
        st.tuples(parts, parts).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        parts.map(lambda part: f"({part})*"),
        parts.map(lambda part: f"(?:{part})+"),
        parts.map(lambda part: f"({part})?"),
    )


PATTERNS = st.recursive(ATOMS, grown, max_leaves=8)


@settings(deadline=None)
@given(PATTERNS, st.text("aAbc1.é \n-]", max_size=12), st.booleans())
def test_a_pattern_is_found_where_pythons_own_expression_is(text: str, where: str, any_case: bool) -> None:
    text = f"(?i){text}" if any_case else text
    assert Pattern(text).found_in(where) == bool(re.search(text, where, re.MULTILINE))


def test_an_expression_that_takes_others_for_ever_takes_as_many_steps_as_the_text_is_long() -> None:
    steps = 0

    class Counted(Pattern):
        def _step(self, *arguments):  # type: ignore[no-untyped-def]
            nonlocal steps
            steps += 1
            return super()._step(*arguments)

    text = "a" * 4000
    assert not Counted("(a*)*(a|aa)+(.*)*b$").found_in(text)
    assert steps == len(text) + 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a{3}", "counts in braces are not supported"),
        ("{", "counts in braces are not supported"),
        ("(ab", "the '(' at character 1 is never closed"),
        ("ab)", "the ')' at character 3 closes nothing"),
        ("a|*", "the '*' at character 3 repeats nothing"),
        ("[ab", "the '[' at character 1 is never closed"),
        ("[b-a]", "runs backwards"),
        (r"(a)\1", r"'\1' at character 4 isn't known"),
        ("ab\\", "isn't known"),
        ("(?=a)", "look-around"),
        ("(?P<n>a)", "named groups"),
        ("x(?i)", "(?i) is allowed at the start"),
        ("a" * (LIMIT + 1), "at most 256 characters"),
        ("(" * LIMIT, f"the group at character {NESTED + 1} is inside {NESTED} others"),
    ],
)
def test_what_is_no_pattern_is_told_in_words(text: str, words: str) -> None:
    with pytest.raises(BadPattern, match=re.escape(words)):
        Pattern(text)


def test_groups_may_lie_inside_each_other_up_to_a_depth() -> None:
    assert f"groups inside {NESTED} others" in (RuleSpec.model_fields["message"].description or "")
    assert Pattern("(" * NESTED + "a" + ")" * NESTED + "(b)").found_in("ab")


def test_a_lazy_sign_is_taken_as_a_greedy_one_since_only_the_finding_counts() -> None:
    assert Pattern(r"a.*?b").found_in("a--b")
    assert not Pattern(r"a.+?b").found_in("ab")
