"""The standard streams of `trainmaster`: closed, without a reader, on a full disk, or in a locale of few letters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import WriteJob
from tests.cli.runs import CRASH, output_folder, status
from trainmaster_operator.cli.main import main
from trainmaster_operator.cli.output_folder import dumped
from trainmaster_operator.planning.facts.job_state import JobPhase


@pytest.fixture
def here(write_job: WriteJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_job()
    monkeypatch.chdir(tmp_path)


def output_into(descriptor: int, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command whose standard output is an open file."""
    with os.fdopen(descriptor, "w") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        code = main(words)
        assert sys.stdout is None, "the interpreter would write the rest at its end, and end with another code"
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), descriptor)
    return code


@pytest.mark.parametrize("words", [["validate", "job.yaml"], ["completion", "bash"], ["--version"], []])
def test_an_output_without_a_reader_ends_as_by_sigpipe(
    words: list[str], here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert output_into(writer, words, monkeypatch) == 141


@pytest.mark.parametrize("words", [["validate", "job.yaml"], ["completion", "bash"]])
def test_an_output_that_finds_no_space_is_a_sentence(
    words: list[str], here: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output_into(os.open("/dev/full", os.O_WRONLY), words, monkeypatch) == 1
    assert capsys.readouterr().err == "trainmaster: the output cannot be written: no space left on device\n"


@pytest.mark.processes
def test_streams_that_are_closed_are_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainmaster_operator.cli.main"]

    def closed(*words: str) -> int:
        line = [*("sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-'), *command, *words]
        return subprocess.run(
            line, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ).returncode

    assert closed("init", "job.yaml") == 0
    assert closed("init", "job.yaml") == 2


@pytest.mark.processes
def test_a_status_with_any_letters_is_read_in_a_locale_without_them(tmp_path: Path) -> None:
    out = output_folder(
        tmp_path / "out", status(JobPhase.FAILED, lastFailure=CRASH.model_copy(update={"message": "é"}))
    )
    file = out / "status.yaml"
    file.write_text(dumped(yaml.safe_load(file.read_text())), encoding="utf-8")
    assert "é" in file.read_text(encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "trainmaster_operator.cli.main", "status", str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **ascii_only},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\xe9" in done.stdout
