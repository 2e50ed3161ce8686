"""The standard streams of `trainmaster`: closed, without a reader, or on a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import WriteJob
from trainmaster_operator.cli.main import main


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
