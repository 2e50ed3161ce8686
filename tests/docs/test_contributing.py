"""CONTRIBUTING.md: its exercise does what the page says, and its table leads to every room."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import tied
from tests.docs.blocks import ROOT, Block, Command, read
from tests.docs.stages import SCHEDULE

PAGE = "CONTRIBUTING.md"
TEXT = (ROOT / PAGE).read_text()
BLOCKS = read(TEXT, PAGE)[0]
PACKAGES = ("operator/trainmaster_operator", "trainer/trainmaster")


def blocks(language: str, begins_with: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and block.text.startswith(begins_with)]


def command(*words: str) -> Command:
    """Return the first command of the page that has all these words."""
    return next(c for block in BLOCKS for c in block.commands if set(words) <= set(c.words))


def copied(folder: Path) -> Path:
    """Return a small copy of the repository. Times are kept, so that compiled modules stay valid."""
    shutil.copytree(ROOT / "operator", folder / "operator")
    shutil.copytree(ROOT / "tests" / "planning", folder / "tests" / "planning")
    shutil.copy2(ROOT / "pyproject.toml", folder / "pyproject.toml")
    (folder / SCHEDULE).parent.mkdir(parents=True)
    shutil.copy2(ROOT / SCHEDULE, folder / SCHEDULE)
    for name in ("simulation", "trainer"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def give(words: list[str], folder: Path) -> tuple[int, str]:
    """Run a Python command of the page in the copy. Return its exit code and all that it wrote."""
    assert words[0] == ".venv/bin/python"
    paths = os.pathsep.join(str(folder / name) for name in ("operator", "trainer"))
    process = tied.popen(
        [sys.executable, *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said, _ = process.communicate()
    return process.returncode, said


def replace_line(file: Path, old: str, new: str) -> None:
    """Replace the one line of `file` that is `old`, whatever its indentation, by the lines of `new`."""
    found = re.findall(rf"^( *){re.escape(old)}$", file.read_text(), re.MULTILINE)
    assert len(found) == 1, f"{file} has {len(found)} lines `{old}`, and the exercise of {PAGE} replaces one"
    (indent,) = found
    file.write_text(file.read_text().replace(indent + old, textwrap.indent(new, indent)))


@pytest.mark.processes
def test_the_exercise_of_contributing_changes_what_the_page_says(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    (test,) = blocks("python", "def test_")
    before, after = (block for block in BLOCKS if block.language == "python" and "floor = " in block.text)
    tests, policy = (re.findall(rf"\n\*\*{step}\. [^`]*`([^`]+\.py)`", TEXT)[0] for step in (2, 3))
    with (folder / tests).open("a") as file:
        file.write(f"\n\n{test.text}\n")
    run_test = [*command("pytest", tests, "-k").words, "--noconftest"]

    code, said = give(run_test, folder)
    assert (code, "1 failed" in said) == (1, True), said
    replace_line(folder / policy, before.text, after.text)
    code, said = give(run_test, folder)
    assert (code, "1 passed" in said) == (0, True), said

    code, said = give(command("replay", SCHEDULE).words, folder)
    recovering = next(line for line in said.splitlines() if "job Recovering" in line)
    for shown in ("restarts {'pod': 1}", "pods 0,1,0"):
        assert f"`{shown}`" in TEXT
        assert shown in recovering, said
    assert code == 0, said


def table() -> list[list[str]]:
    """Return the rows of the table of changes, each with its cells."""
    section = TEXT.partition("\n## Where a change goes\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return rows[2:]


def named_paths() -> list[str]:
    return [span for row in table() for cell in row[1:] for span in re.findall(r"`([^`\s]*/[^`\s]*)`", cell)]


def test_the_table_of_changes_names_a_place_and_its_tests_in_every_row() -> None:
    assert len(table()) > 15
    assert [row[0] for row in table() if len(row) != 3 or not all("`" in cell for cell in row[1:])] == []


def test_every_path_in_the_table_of_changes_exists() -> None:
    assert [path for path in named_paths() if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_table_of_changes_leads_into_every_package(package: str) -> None:
    rooms = [file.parent.relative_to(ROOT) for file in (ROOT / package).glob("*/__init__.py")]
    paths = named_paths()
    assert len(rooms) > 5
    assert [str(room) for room in rooms if not any(path.startswith(f"{room}/") for path in paths)] == []
