"""The commands that README and docs show, run as they stand there, and held against the output that is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs.executing import Executor, run_child_here
from tests.docs.sessions import Session, sessions
from tests.e2e.harness import LIMIT_S, small_demo_job, started
from tests.e2e.warm import COMMAND
from trainmaster_operator.cli.run import demo
from trainmaster_operator.cli.run.run_job import RunOptions
from trainmaster_operator.cli.this_machine import trainer_process

pytestmark = pytest.mark.processes

SESSIONS = {name: session for name, session in sessions().items() if session.commands}


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
def test_a_session_of_a_page_goes_as_the_page_shows(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer_process, "run", run_child_here)
    monkeypatch.chdir(tmp_path)
    session.play(tmp_path, Executor(capfd))


def test_the_demo_loses_a_rank_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of the demo but its size: its run is the real command."""

    def run(options: RunOptions) -> int:
        faults = [word for fault in options.faults for word in ("--fault", fault)]
        arguments = ["run", str(options.job), "--out", str(options.out), "--plain", *faults]
        arguments += ["--fresh"] if options.fresh else []
        with started([sys.executable, "-m", COMMAND, *arguments]) as process:
            output, _ = process.communicate(timeout=LIMIT_S)
            assert process.wait() == 0, output
            return 0

    job = small_demo_job(tmp_path, 4, {"dpReplicate": 2, "dpShard": 2}, 24)
    monkeypatch.setattr(demo, "example", lambda: job)
    monkeypatch.setattr(demo, "run", run)
    assert demo.demo(tmp_path / "demo", plain=True) == 0
    said = capsys.readouterr().out
    assert "In step 12, rank 2 is killed as by `kill -9`." in said
    assert "Rank 2 was killed in step 12. Nothing was lost: " in said
    assert (tmp_path / "demo" / "report.html").is_file()
