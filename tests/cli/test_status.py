"""`trainmaster status DIR`: how a run on this machine stands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.api.jobs import PYTORCH, job
from tests.cli.runs import CRASH, SUCCEEDED, output_folder, status
from trainmaster_operator.cli import output_folder as output
from trainmaster_operator.cli.display import rank_pids
from trainmaster_operator.cli.display.plain_display import PlainDisplay
from trainmaster_operator.cli.display.watch_run import watch_run
from trainmaster_operator.cli.main import main
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, Rung, Spent, Suspicion
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.status_mapping import write_status

Shown = Callable[[JobState], list[str]]


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shown:
    """What is said of a run that was left in this state, and whose command has ended."""

    def show(left: JobState) -> list[str]:
        assert main(["status", str(output_folder(tmp_path / "out", left))]) == 0
        return capsys.readouterr().out.splitlines()

    return show


def state(lines: list[str]) -> str:
    """The word for how it stands, which is told once."""
    word = lines[0].split()[1]
    assert not any(line.startswith(word) for line in lines)
    return word


def test_a_run_that_goes_on_is_running(tmp_path: Path, shown: Shown) -> None:
    output_folder(tmp_path / "out", status())
    folder = output.OutputFolder.claim(tmp_path / "out")
    lines = shown(status())
    folder.release()
    assert state(lines) == "Running"
    assert lines[-1] == f"Its command is running; `trainmaster logs {tmp_path}/out --follow` shows what rank 0 prints."


@pytest.mark.parametrize("words", [[], ["--watch"]])
def test_a_run_that_ends_in_this_moment_is_shown_with_its_end(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = output_folder(tmp_path / "out", status())

    def end(path: Path) -> bool:
        output_folder(path, SUCCEEDED)
        return False

    monkeypatch.setattr(output, "is_held", end)
    assert main(["status", str(out), *words]) == 0
    assert capsys.readouterr().out.startswith("tiny: Succeeded  step 100")


def test_a_run_whose_folder_is_deleted_while_it_is_watched_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = output_folder(tmp_path / "out", status())
    folder = output.OutputFolder.claim(out)

    def delete(seconds: float) -> None:
        shutil.rmtree(out, ignore_errors=True)

    with pytest.raises(Refusal, match="out: holds no run"):
        watch_run(out, lambda scene: PlainDisplay(scene, sys.stdout), delete)
    folder.release()


def test_the_ranks_of_a_run_that_goes_on_are_named_with_their_pids(tmp_path: Path, shown: Shown) -> None:
    out = output_folder(tmp_path / "out", status())
    ended = subprocess.Popen(["true"])
    alive = [{"rank": 1, "pid": os.getpid()}, {"rank": 0, "pid": ended.pid}, {"rank": 2, "pid": 0}]
    rank_pids.RankPids(out / output.PIDS).write(alive)
    ended.wait()
    sentence = f"Processes: rank 1: pid {os.getpid()}"
    folder = output.OutputFolder.claim(out)
    assert sentence in shown(status())
    (out / output.PIDS).write_text(f'{{"1": [{os.getpid()}, 1]}}')  # An earlier process had this pid.
    assert sentence not in shown(status())
    folder.release()


def test_a_run_whose_command_has_died_is_interrupted_and_can_be_gone_on_with(shown: Shown) -> None:
    lines = shown(status())
    assert state(lines) == "Interrupted"
    assert lines[-1] == (
        "The command of the run ended while the job was running. To continue it from its newest checkpoint, or from "
        "the first step if there is none, give the same trainmaster run command again."
    )


def test_a_run_that_was_stopped_is_suspended(shown: Shown) -> None:
    lines = shown(status(JobPhase.SUSPENDED))
    assert state(lines) == "Suspended"
    assert lines[-1] == (
        "The run was stopped. Nothing was saved yet. To start it again from the first step, give the same trainmaster "
        "run command again."
    )


def test_a_run_that_is_asked_to_stop_says_what_it_waits_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output_folder(tmp_path / "out", status())
    left = yaml.safe_load((out / "status.yaml").read_text())
    left["spec"]["suspend"] = True
    (out / "status.yaml").write_text(yaml.safe_dump(left))
    folder = output.OutputFolder.claim(out)
    assert main(["status", str(out)]) == 0
    folder.release()
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Ctrl-C or a signal has asked the run to stop: the run ends when all ranks have ended; a second Ctrl-C ends it "
        "at once."
    )


def test_a_run_that_has_ended_has_ended(tmp_path: Path, shown: Shown) -> None:
    assert state(shown(SUCCEEDED)) == "Succeeded"
    failed = status(JobPhase.FAILED, lastFailure=CRASH)
    (tmp_path / "out" / "logs").mkdir()
    (tmp_path / "out" / "logs" / f"{CRASH.pod}.log").write_text("[rank 2] last words\n")
    lines = shown(failed)
    assert state(lines) == "Failed"
    assert lines[1] == "Last failure: rank 2: Crash after step 59: killed by SIGKILL"
    assert "  last words" in lines
    assert lines[-1] == f"Log of rank 2: {tmp_path}/out/logs/{CRASH.pod}.log"


def test_the_status_of_a_failed_run_has_the_whole_message_with_the_advice(shown: Shown) -> None:
    failure = CRASH.model_copy(update={"message": "the same failure came 3 times. " * 25 + "Add the rule"})
    assert shown(status(JobPhase.FAILED, lastFailure=failure))[1] == (
        f"Last failure: rank 2: Crash after step 59: SIGKILL: {failure.message}"
    )


def test_a_run_that_does_not_run_has_no_time_left_and_no_speed(tmp_path: Path, shown: Shown) -> None:
    output_folder(tmp_path / "out", status())
    folder = output.OutputFolder.claim(tmp_path / "out")
    lines = shown(status())
    folder.release()
    assert lines[0] == "tiny: Running  step 60/100  loss 2.5000  12.3k tokens/s  ETA 1:35"
    assert shown(status())[0] == "tiny: Interrupted  step 60/100  loss 2.5000"
    assert shown(status(JobPhase.SUSPENDED))[0] == "tiny: Suspended  step 60/100  loss 2.5000"


def test_a_run_whose_last_step_is_some_seconds_old_says_so_before_it_counts_as_a_standstill(
    tmp_path: Path, shown: Shown
) -> None:
    def first_line(seconds: float) -> str:
        left = status()
        left.progress.updatedAt, left.progress.stepsPerSecond = rfc3339(time.time() - seconds), 7.37
        return shown(left)[0]

    output_folder(tmp_path / "out", status())
    folder = output.OutputFolder.claim(tmp_path / "out")
    lines = [first_line(seconds) for seconds in (0.0, 5.0)]
    folder.release()
    assert "ago" not in lines[0]
    assert re.search(r"12.3k tokens/s  ETA 1:35  last step [\d.]+ s ago$", lines[1])


def test_the_last_failure_of_a_run_that_has_not_failed_is_told_with_its_round_and_time(shown: Shown) -> None:
    when = "It happened in round 1, at 2026-11-21 15:00:20 UTC."
    lines = shown(status(JobPhase.SUSPENDED, round=4, lastFailure=CRASH))
    assert lines[lines.index("Last failure: rank 2: Crash after step 59: killed by SIGKILL") + 1] == when
    assert when not in shown(status(JobPhase.FAILED, lastFailure=CRASH))


def test_a_run_that_makes_no_step_says_so_and_not_what_its_last_steps_were_like(tmp_path: Path, shown: Shown) -> None:
    left = status(goodput="1.00", usefulSeconds=1.0, accountedAt="2026-11-21T15:00:20.000Z")
    left.progress.updatedAt, left.progress.stepsPerSecond = "2026-11-21T15:00:20.000Z", 7.37
    output_folder(tmp_path / "out", left)
    folder = output.OutputFolder.claim(tmp_path / "out")
    lines = shown(left)
    folder.release()
    assert re.fullmatch(r"tiny: Running  step 60/100  loss 2.5000  no step for [\d:.]+ \(usually 136 ms\)", lines[0])
    assert any("goodput 0.00" in line for line in lines)


def test_a_run_whose_ranks_may_hang_says_so_while_it_goes_on(tmp_path: Path, shown: Shown) -> None:
    left = status(suspicion=Suspicion(round=1, rank=0, slot=0, message="rank 0 has been silent for 30.5 s"))
    output_folder(tmp_path / "out", left)
    folder = output.OutputFolder.claim(tmp_path / "out")
    lines = shown(left)
    folder.release()
    assert lines[1] == "Ranks may hang: rank 0 has been silent for 30.5 s"
    assert not any("may hang" in line for line in shown(left))


def test_a_script_without_a_known_step_is_not_said_to_stand_at_step_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = JobState(phase=JobPhase.SUCCEEDED)
    out = output_folder(tmp_path / "out", ended)
    left = {**job(PYTORCH, metadata__name="tiny"), "status": write_status(ended)}
    (out / "status.yaml").write_text(yaml.safe_dump(left))
    assert main(["status", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny: Succeeded  no step is known"
    assert lines[1:3] == ["", "0 restarts"]


def test_a_run_that_is_pending_is_said_once_to_be_so(tmp_path: Path, shown: Shown) -> None:
    output_folder(tmp_path / "out", JobState())
    folder = output.OutputFolder.claim(tmp_path / "out")
    lines = shown(JobState())
    folder.release()
    assert lines[:3] == ["tiny: Pending  no step yet", "", "0 restarts"]
    assert shown(JobState())[:3] == ["tiny: Interrupted  no step yet", "", "0 restarts"]


def test_a_report_that_is_not_there_is_not_named_but_the_command_that_makes_it(tmp_path: Path, shown: Shown) -> None:
    assert f"Report: `trainmaster report {tmp_path}/out` writes it" in shown(status())
    (tmp_path / "out" / "report.html").touch()
    assert f"Report: {tmp_path}/out/report.html" in shown(status())


def test_images_are_counted_as_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output_folder(tmp_path / "out", status(JobPhase.SUCCEEDED))
    left = yaml.safe_load((out / "status.yaml").read_text())
    left["spec"]["training"]["data"]["source"] = "images"
    (out / "status.yaml").write_text(yaml.safe_dump(left))
    assert main(["status", str(out)]) == 0
    assert "12.3k images/s" in capsys.readouterr().out


def test_a_job_that_has_used_its_budget_says_how_many_restarts_are_left(shown: Shown) -> None:
    spent = [
        Spent(time="2026-11-21T15:00:20.000Z", rung=Rung.IN_PLACE, cause="Crash", step=60, count=3),
        Spent(time="2026-11-21T15:00:20.000Z", rung=Rung.POD, cause="Crash", step=60),
        Spent(time="2026-11-21T15:00:20.000Z", rung=Rung.POD, cause="Hang", step=60),
    ]
    left = status(JobPhase.RECOVERING, lastFailure=CRASH, spent=spent)
    assert (
        "If the cause Crash comes again before the job makes progress, these restarts are left: 0 in place, 2 with a "
        "new pod, 2 with all pods new"
    ) in shown(left)
    ended = left.model_copy(update={"phase": JobPhase.FAILED})
    assert not any("are left" in line for line in shown(ended))
