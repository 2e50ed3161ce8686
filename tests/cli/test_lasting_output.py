"""The output of `trainmaster run`, whose reader may end before the run does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tied
from tests.cli.conftest import WriteJob
from tests.cli.test_run_processes import SMALL
from tests.e2e import harness
from tests.e2e.warm import COMMAND
from trainmaster_operator.cli.run.lasting_output import lasting
from trainmaster_operator.cli.run.local_run import stop_signals


def test_what_is_written_after_the_reader_has_gone_is_dropped_and_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with lasting(Path("runs/x")):
            sys.stdout.write("one\n")
            sys.stdout.flush()
            assert os.read(reader, 100) == b"one\n"
            os.close(reader)
            for line in ("two\n", "three\n"):
                sys.stdout.write(line)
                sys.stdout.flush()
        assert sys.stdout is stream
        stream.flush()  # as the interpreter does at its end
    assert capsys.readouterr().err == (
        "trainmaster: nothing reads the output any more; the run continues, and `trainmaster status runs/x --watch` "
        "shows it\n"
    )


def test_a_run_whose_output_finds_no_space_continues_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with lasting(Path("runs/x")):
            for line in ("one\n", "two\n"):
                sys.stdout.write(line)
                sys.stdout.flush()
        stream.flush()  # as the interpreter does at its end
    assert capsys.readouterr().err == (
        "trainmaster: the output cannot be written: no space left on device; the run continues, and "
        "`trainmaster status runs/x --watch` shows it\n"
    )


@pytest.mark.processes
def test_a_run_whose_reader_ends_like_head_continues_to_its_end(
    tmp_path: Path, write_job: WriteJob, machine_zygote: Path
) -> None:
    words = ["run", str(write_job(**SMALL, spec__training__steps=20)), "--out", str(tmp_path / "out")]
    with tied.popen(
        [sys.executable, "-m", COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=harness.run_environment(),
        start_new_session=True,
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline().endswith(f"output in {tmp_path}/out\n")
        run.stdout.close()
        assert run.wait(harness.LIMIT_S) == 0
        assert run.stderr is not None
        assert "the run continues" in run.stderr.read()
    assert "phase: Succeeded" in (tmp_path / "out" / "status.yaml").read_text()


def test_a_run_that_was_started_by_nohup_is_not_stopped_by_the_end_of_its_terminal() -> None:
    handled = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may have been started by nohup
    try:
        assert signal.SIGHUP in stop_signals()
    finally:
        signal.signal(signal.SIGHUP, handled)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stop_signals() == [signal.SIGINT, signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)
