"""What is read of a page, and how output is held against it."""

from __future__ import annotations

import pytest

from tests.docs import blocks
from tests.docs.blocks import PageError, read
from tests.docs.matching import differences

FENCE = "```"


def page(*lines: str) -> str:
    return "\n".join(lines)


def test_a_console_block_has_its_commands_with_the_output_below_each() -> None:
    ((block,), _) = read(
        page("text", f"{FENCE}console", "$ a --b  # why", "said", "$ c \\", "  d", FENCE, "more"), "x.md"
    )
    assert [command.words for command in block.commands] == [["a", "--b"], ["c", "d"]]
    assert [command.output for command in block.commands] == [("said",), ()]
    assert block.where == "x.md:2"


def test_a_mark_is_about_the_commands_that_begin_with_its_words() -> None:
    ((block,), _) = read(
        page("<!-- cluster: a fault -->", "<!-- session: one -->", f"{FENCE}console", "$ a fault x", "$ a run", FENCE),
        "x.md",
    )
    assert [command.text for command, _ in block.marked("cluster")] == ["a fault x"]
    assert [command.text for command in block.runnable] == ["a run"]
    assert block.session == "one"


def test_a_mark_without_words_is_about_all_commands() -> None:
    ((block,), _) = read(page("<!-- cluster -->", f"{FENCE}console", "$ a", "$ b", FENCE), "x.md")
    assert not block.runnable


def test_claims_stand_above_paragraphs() -> None:
    assert [mark.value for mark in read(page("<!-- claim: one -->", "It holds."), "x.md")[1]] == ["one"]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["<!-- long -->", FENCE, FENCE], "x.md:1: the mark `long` needs a value: <!-- long: ... -->"),
        (["<!-- exact: yes -->", FENCE, FENCE], "x.md:1: the mark `exact` has no value: <!-- exact -->"),
        (["<!-- slow: a -->", FENCE, FENCE], "x.md:1: slow is no mark; there are cluster, long, "),
        (["<!-- cluster -->", "", FENCE, FENCE], "x.md:1: the mark `cluster` stands directly above no block"),
        (["<!-- cluster -->"], "x.md:1: the mark `cluster` stands directly above no block"),
        ([FENCE, "text"], "x.md:1: the block that begins here has no end"),
    ],
)
def test_a_mark_that_says_nothing_is_refused(lines: list[str], sentence: str) -> None:
    with pytest.raises(PageError) as refused:
        read(page(*lines), "x.md")
    assert str(refused.value).startswith(sentence)


def test_a_console_block_without_a_command_is_refused() -> None:
    ((block,), _) = read(page(f"{FENCE}console", "said", FENCE), "x.md")
    with pytest.raises(PageError, match=r"^x\.md:1: a console block begins with a command"):
        _ = block.commands


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (["step 3: 1.25 s"], "step 14: 0.5 s\n"),
        (["a   1.0G  2"], "a 505M      17\n"),
        (["first", "...", "last"], "first\nx\ny\nlast\n"),
        (["first", "..."], "first\n"),
        (["a {...} b"], "a {x, y} b\n"),
        (["1,830 sequences"], "12 sequences\n"),
    ],
)
def test_output_may_differ_in_numbers_blanks_and_what_is_left_out(shown: list[str], said: str) -> None:
    assert differences(shown, said, exact=False) == ""


@pytest.mark.parametrize(
    ("shown", "said", "exact"),
    [
        (["step 3"], "step 3\nmore\n", False),
        (["step 3"], "steps 3\n", False),
        (["step 3"], "step 4\n", True),
        (["first", "last"], "first\nx\nlast\n", False),
        (["rank r1"], "rank r2\n", False),
    ],
)
def test_output_may_not_differ_otherwise(shown: list[str], said: str, exact: bool) -> None:
    assert "+" in differences(shown, said, exact)


def test_prose_has_paragraphs_on_one_line_and_no_block() -> None:
    text = page("a `b", "c` d", "", f"{FENCE}", "code", FENCE, "", "<!-- exact -->", "| x |", "| y |")
    assert [line for line in blocks.prose(text).splitlines() if line] == ["a `b c` d", "| x |", "| y |"]
