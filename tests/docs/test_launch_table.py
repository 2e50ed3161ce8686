"""The table of docs/scripts.md says of each way to launch a script what becomes of it: that is what `parse` does."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from tests.docs.blocks import ROOT
from trainmaster.contract.launch import LaunchRefused, parse

_LEFT_OUT = "…"


def rows() -> Iterator[tuple[list[str], str]]:
    """Each line of the table's first column, with what its second one says of it."""
    table = (ROOT / "docs" / "scripts.md").read_text().partition("\n## Ways to launch\n")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| (.+) \| (.+) \|$", table, re.MULTILINE)[2:]:
        for line in re.findall(r"`(\[.+?\])`", row[0]):
            yield completed(yaml.safe_load(line)), row[1]


def completed(words: list[str]) -> list[str]:
    """The line with a script in the place of what is left out at its end."""
    program = ["python", "train.py"] if words[-1] == _LEFT_OUT else []
    return [word.replace(_LEFT_OUT, "train.py") for word in words if word != _LEFT_OUT] + program


def way(argv: list[str]) -> str:
    """How ranks run a line of the table."""
    try:
        command = parse(argv, is_ours=lambda program: program == "python")
    except LaunchRefused:
        return "refused"
    return "forked" if command.entry is not None and not command.flags else "executed"


def said(words: str) -> str:
    """What a cell of the second column says of its lines."""
    if words.startswith("Refused:"):
        return "refused"
    return "forked" if words.startswith("The same") or "forked after" in words else "executed"


@pytest.mark.parametrize(("argv", "words"), list(rows()), ids=lambda value: " ".join(value)[:40])
def test_a_line_is_forked_executed_or_refused_as_the_table_says(argv: list[str], words: str) -> None:
    assert way(argv) == said(words)


def test_all_lines_of_the_table_are_looked_at() -> None:
    assert {said(words) for _, words in rows()} == {"forked", "executed", "refused"}
    assert len(list(rows())) >= 25


def test_an_option_of_python_is_executed() -> None:
    assert way(["python", "-O", "train.py"]) == way(["python", "-X", "dev", "train.py"]) == "executed"
