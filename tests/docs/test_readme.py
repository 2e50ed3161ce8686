"""README.md: it is short, its picture has the times of its table, and each feature has one of three states."""

from __future__ import annotations

import math
import re
import textwrap
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

README = (ROOT / "README.md").read_text()
PICTURES = [ROOT / "docs" / "pictures" / f"a-rank-dies{suffix}.svg" for suffix in ("", "-narrow")]
COLUMNS, LINES_OF_A_SCREEN, LINE_PX = 100, 40, 22
STATES = ("works", "ran there", "not run there", "planned")


def lines_on_a_screen(text: str) -> int:
    """Return about how many lines a page takes where it is read: sentences wrapped, without comments and addresses."""
    height = 0
    text = re.sub(r"^<!--.*?-->\n", "", text, flags=re.MULTILINE)
    for picture in re.findall(r"<img src=\"([^\"]+\.svg)\"", text):
        found = re.search(r' height="(\d+)"', (ROOT / picture).read_text())
        assert found is not None, picture
        height += math.ceil(int(found[1]) / LINE_PX)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|<[a-z/][^>]*>\n?", "", text)  # also what only opens when it is clicked
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"^```\w*\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    for code in parts[1::2]:
        height += 1 + len(code.splitlines())
    for paragraph in re.findall(r"(?:\S.*\n?)+", "\n\n".join(parts[::2])):
        whole = paragraph.splitlines() if paragraph.startswith("|") else [" ".join(paragraph.split())]
        height += 1 + sum(len(textwrap.wrap(line, COLUMNS)) for line in whole if not re.fullmatch(r"[| -]*", line))
    return height


def test_the_readme_takes_at_most_four_screens() -> None:
    assert lines_on_a_screen(README) <= 4 * LINES_OF_A_SCREEN


def test_a_page_is_as_long_as_what_a_reader_sees_of_it() -> None:
    assert lines_on_a_screen("<!-- claim: a -->\n" + "word " * 40) == 1 + 2
    assert lines_on_a_screen("[a](" + "b" * 200 + ")") == 1 + 1
    assert lines_on_a_screen("a\n\n```console\n$ b\n$ c\n```\n\nd") == 2 + 3 + 2
    assert lines_on_a_screen("| a |\n| --- |\n| b |") == 1 + 2
    assert lines_on_a_screen('<img src="docs/pictures/a-rank-dies.svg">') > 10


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_every_time_in_the_picture_is_in_the_table_of_recoveries(picture: Path) -> None:
    assert f'="docs/pictures/{picture.name}"' in README
    block = README.partition("<!-- benchmarks.pages: recovery -->")[2].partition("<!-- end -->")[0]
    (row,) = (line for line in block.splitlines() if line.startswith("| 4 | DDP |"))
    times = re.findall(r"\d[\d.]* s\b(?: \([^)]*\))?", picture.read_text())
    assert len(times) == 3  # both systems, and ours once more in the description that is read aloud
    assert [time for time in times if time not in row] == []


def test_every_feature_has_one_of_four_states_and_those_that_exist_lead_to_a_page() -> None:
    table = README.partition("\n| what | state |\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]
    assert {state for _, state in rows} == {*STATES}
    assert [what for what, state in rows if state != "planned" and "](docs/" not in what] == []
    assert [what for what, state in rows if state == "planned" and "](" in what] == []
