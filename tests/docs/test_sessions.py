"""How the commands of a page are run, and what fails there."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.docs import sessions as module
from tests.docs.blocks import read
from tests.docs.executing import Executor
from tests.docs.sessions import Session
from tests.docs.stages import Stage

PAGE = """
<!-- session: s -->
<!-- file: job.yaml -->
```yaml
steps: 1000
path: /data/texts
```

<!-- session: s -->
```console
$ plan job.yaml
1000 steps in /home/me
$ run job.yaml   # much
```
"""


class Recorder:
    """Plays the commands: says what it is told to, and keeps what it was asked for."""

    def __init__(self, code: int = 0, said: str = "3 steps in FOLDER\n") -> None:
        self.code, self.said = code, said
        self.asked: list[list[str]] = []

    def __call__(self, words: list[str], folder: Path) -> tuple[int, str]:
        self.asked.append(words)
        return self.code, self.said.replace("FOLDER", str(folder))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    stage = Stage(first=("make ready",), smaller={"steps: 1000": "steps: 10"})
    monkeypatch.setattr(module, "STAGES", {"x.md:s": stage})
    return Session("x.md:s", tuple(read(PAGE, "x.md")[0]))


def test_commands_run_in_their_order_after_what_the_stage_prepares(session: Session, tmp_path: Path) -> None:
    asked = Recorder()
    session.play(tmp_path, asked)
    assert asked.asked == [["make", "ready"], ["plan", "job.yaml"], ["run", "job.yaml"]]
    assert (tmp_path / "job.yaml").read_text() == f"steps: 10\npath: {tmp_path}/data/texts\n"


def test_a_command_that_fails_is_named_with_its_place_and_words(session: Session, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"`make ready` ended with exit code 2:\nno$"):
        session.play(tmp_path, Recorder(2, "no"))


def test_another_output_than_the_page_shows_is_told(session: Session, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"x\.md:10: `plan job.yaml` says something else:(?s:.*)\+3 steps"):
        session.play(tmp_path, Recorder(said="3 steps of FOLDER\n"))


def test_what_a_stage_makes_smaller_must_be_on_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "STAGES", {"x.md:s": Stage(smaller={"steps: 2000": "steps: 10"})})
    with pytest.raises(AssertionError, match="no file and no command has"):
        Session("x.md:s", tuple(read(PAGE, "x.md")[0])).play(tmp_path, Recorder())


def test_a_file_that_a_command_writes_is_made_smaller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stage = Stage(smaller={"steps: 1000": "steps: 10"}, written=("new.yaml",))
    monkeypatch.setattr(module, "STAGES", {"x.md:s": stage})
    session = Session("x.md:s", tuple(read("```console\n$ write\n$ run\n```", "x.md")[0]))
    found = []

    def execute(words: list[str], folder: Path) -> tuple[int, str]:
        if words == ["write"]:
            (folder / "new.yaml").write_text("steps: 1000\n")
        else:
            found.append((folder / "new.yaml").read_text())
        return 0, ""

    session.play(tmp_path, execute)
    assert found == ["steps: 10\n"]


def test_a_file_that_no_command_writes_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "STAGES", {"x.md:s": Stage(written=("new.yaml",))})
    session = Session("x.md:s", tuple(read("```console\n$ run\n```", "x.md")[0]))
    with pytest.raises(AssertionError, match=r"no command writes \['new\.yaml'\]"):
        session.play(tmp_path, Recorder(said=""))


def test_a_refusal_ends_with_exit_code_two(tmp_path: Path) -> None:
    blocks, _ = read("```console\n$ run a\ntrainmaster: a: doesn't exist\n```", "x.md")
    session = Session("x.md:block-1", tuple(blocks))
    session.play(tmp_path, Recorder(2, "trainmaster: a: doesn't exist\n"))
    with pytest.raises(AssertionError, match="ended with exit code 0"):
        session.play(tmp_path, Recorder(0, "trainmaster: a: doesn't exist\n"))


@pytest.mark.parametrize("words", ["make demo", "kubectl get dtj", "helm list"])
def test_a_command_without_a_mark_that_cannot_be_run_here_fails(tmp_path: Path, words: str) -> None:
    with pytest.raises(AssertionError, match="a mark `long` or `cluster` is missing"):
        Executor(Mock())(words.split(), tmp_path)
