"""Row W1: a torchrun-style script runs, restarts in place, and its death is told, without importing trainmaster."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.harness import command, run, script_job, started
from tests.stored import flat_status

SCRIPT = Path(__file__).parent / "scripts" / "ddp.py"


def job(folder: Path, arguments: list[str], prefix: tuple[str, ...] = ("python",), **recovery: Any) -> Path:
    command = [*prefix, str(SCRIPT), "--checkpoint", str(folder / "own.pt"), *arguments]
    return script_job(folder, command, recovery=recovery)


@pytest.mark.processes
@pytest.mark.parametrize("prefix", [("python",), ("torchrun", "--nproc-per-node=1")])
def test_a_script_restarts_in_place_and_its_steps_are_seen(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    outcome = run(job(tmp_path, ["--die", "kill", "--uncompiled"], prefix), tmp_path / "out")
    assert outcome.exit_code == 0, outcome.output
    status = outcome.status
    assert status["phase"] == "Succeeded"
    assert status["restarts"]["inPlace"] == 1
    assert status["restarts"]["pod"] == status["restarts"]["full"] == 0
    logs = "".join(path.read_text() for path in sorted((tmp_path / "out" / "logs").glob("script-worker-*")))
    assert "resumed at step 5" in logs
    assert "finished at step 20 after 1 restarts" in logs
    shown = [line[9:].removeprefix("rank 0 ").strip() for line in outcome.output.splitlines() if " rank 0 " in line]
    assert "resumed at step 5" in shown, "what rank 0 prints comes to the terminal, after its traceback of a lost peer"
    assert shown[-1] == "finished at step 20 after 1 restarts"
    assert f"Logs: {tmp_path}/out/logs" in outcome.output
    assert status["progress"]["step"] == 20, "the hooks count on from the save that the script has loaded"
    assert [r["resumedStep"] for r in status["recoveries"]] == [5]


@pytest.mark.processes
def test_the_steps_of_a_script_that_a_shell_starts_are_seen(tmp_path: Path) -> None:
    words = f"echo begun; {sys.executable} {SCRIPT} --steps 6 --checkpoint {tmp_path}/own.pt"
    outcome = run(script_job(tmp_path, ["bash", "-c", words], replicas=1), tmp_path / "out")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.status["progress"]["step"] == 6


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "exit_code", "signal", "words"),
    [
        ("segv", 139, "SIGSEGV", ""),
        ("kill", 137, "SIGKILL", ""),
        ("exit", 3, "", ""),
        ("leave", 0, "", ""),
        ("raise", 1, "", "ArithmeticError: the answer is not 42"),
    ],
)
def test_the_verdict_names_rank_cause_and_end(
    tmp_path: Path, how: str, exit_code: int, signal: str, words: str
) -> None:
    nothing_left = {"inPlace": 0, "pod": 0, "full": 0}
    outcome = run(job(tmp_path, ["--by-hand", "--die", how], budget=nothing_left), tmp_path / "out")
    assert outcome.exit_code == 1, outcome.output
    assert outcome.status["phase"] == "Failed"
    failure = outcome.status["lastFailure"]
    assert failure["rank"] == 1
    assert failure["cause"] == "Crash"
    assert failure["signal"] == signal
    assert failure["exitCode"] == exit_code
    assert words in failure["traceback"]
    assert how != "leave" or failure["message"].endswith(
        ": rank 1 ended with exit code 0, while 1 other rank was still training"
    )
    log = f"Log of rank 1: {tmp_path}/out/logs/{failure['pod']}.log"
    assert outcome.output.splitlines()[-1] == log
    assert not words or f"  {words}" in outcome.output.splitlines(), "the last lines of the rank"


@pytest.mark.processes
def test_ranks_that_a_script_spawns_meet_at_its_own_address(tmp_path: Path) -> None:
    outcome = run(script_job(tmp_path, ["python", str(SCRIPT.with_name("spawns.py"))], replicas=1), tmp_path / "out")
    assert outcome.exit_code == 0, outcome.output
    assert "2 ranks met, one of them spawned" in outcome.output


@pytest.mark.processes
def test_a_script_that_ends_well_when_told_to_is_suspended_and_not_done(tmp_path: Path) -> None:
    path = job(tmp_path, ["--steps", "1000000", "--ends-well-on-sigterm", "--uncompiled"])
    with started(command(path, tmp_path / "out")) as process:
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(line)
            if line[9:].startswith("running"):
                process.send_signal(signal.SIGINT)
        assert process.wait() == 130, "".join(told)
    assert f": trainmaster run {path} --out {tmp_path}/out" in told[-1], "how to go on"
    status = flat_status(yaml.safe_load((tmp_path / "out" / "status.yaml").read_text())["status"])
    assert status["phase"] == "Suspended"
