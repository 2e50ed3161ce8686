"""Paths and files that a person may type or have: too long, unreadable, in a circle, in a folder that is gone."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.api.jobs import PYTORCH
from tests.cli.conftest import WriteJob
from tests.cli.runs import output_folder
from tests.cli.test_bad_input import CONTAINER, refused
from trainmaster_operator.cli.main import main

LONG = "a" * 300


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("command", ["status", "logs", "report", "delete", "restart"])
def test_a_name_that_no_file_can_have_is_a_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert any(LONG in line or "no kubeconfig" in line for line in refused(capsys, command, LONG))


def test_a_path_that_no_file_can_have_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    assert refused(capsys, "status", f"runs/{LONG}") == [f"runs/{LONG}: can't be read: file name too long"]


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder with a run, which this process may not enter: as root it becomes another user for the test."""
    above = Path(tempfile.mkdtemp(prefix="tm-"))
    output_folder(above / "out")
    above.chmod(0o700 if os.geteuid() == 0 else 0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield above / "out"
    finally:
        os.seteuid(was)
        above.chmod(0o700)
        shutil.rmtree(above)


def test_a_run_in_a_folder_of_another_user_is_a_sentence(closed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(closed)]) == 2
    assert capsys.readouterr() == ("", f"trainmaster: {closed}: can't be read: permission denied\n")


def test_an_output_folder_in_a_circle_of_links_is_a_sentence(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (line,) = refused(capsys, "run", str(write_job()), "--out", "loop/x")
    assert line == "loop/x: leads in a circle of symbolic links"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"command": ["python", LONG]}, f"/{LONG} can't be read: file name too long"),
        ({"command": ["python", "a\0b.py"]}, "there is no script"),
        ({"command": [LONG]}, f"no program {LONG} is found"),
        ({"command": ["true"], "workingDir": LONG}, f"/{LONG} is not a folder"),
        ({"command": ["true"], "workingDir": True}, "the path of a folder is expected, not true"),
    ],
)
def test_programs_scripts_and_folders_that_cannot_be_are_sentences(
    changes: dict[str, object], words: str, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = refused(capsys, "validate", str(write_job(PYTORCH, **{CONTAINER: [{"name": "worker", **changes}]})))
    assert words in line


def test_a_resumed_checkpoint_that_no_file_can_be_is_a_sentence(
    write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = refused(capsys, "validate", str(write_job(spec__checkpoint={"resume": LONG})))
    assert "spec.checkpoint.resume: there is no checkpoint" in line


def test_a_command_in_a_folder_that_was_deleted_is_a_sentence(
    tmp_path: Path, write_job: WriteJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["validate", str(file)]) == 2
    assert capsys.readouterr().err == "trainmaster: the current folder was deleted; change to another folder\n"


@pytest.mark.parametrize("part", ["metadata", "spec", "status"])
def test_a_status_whose_parts_are_no_maps_is_a_sentence(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = output_folder(tmp_path / "out") / "status.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), part: None}))
    for command in ("status", "logs", "report"):
        assert refused(capsys, command, "out") == ["out/status.yaml: is not the status of a DistributedTrainingJob"]
