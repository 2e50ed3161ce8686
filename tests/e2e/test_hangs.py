"""Ranks that get stuck while the others wait for them: named with their stack, told or ended as the job has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import script_job
from tests.e2e.live import live

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parent / "scripts" / "stuck.py"
PATIENT, SHORT = ({"recovery": {"hang": {"limitSeconds": seconds}}} for seconds in (120, 4))
"""A start may take long on a busy machine, and is no hang. Once all ranks step, the limit may be short."""


def job(folder: Path, how: str, mode: str) -> Path:
    command = ["python", str(SCRIPT), "--how", how, "--once", str(folder / "stuck-once")]
    return script_job(folder, command, "stuck", 2, recovery={"hang": {**PATIENT["recovery"]["hang"], "mode": mode}})


def test_the_rank_that_did_not_arrive_is_named_with_its_stack_and_all_restart(tmp_path: Path) -> None:
    """It waits in C, for a lock: no Python line runs there until it is killed."""
    with live(job(tmp_path, "lock", "Enforce"), tmp_path / "out", "stuck") as training:
        training.wait_step(5)
        training.patch(SHORT)
        training.wait(lambda status: status.get("lastFailure"), "the hang")
        training.patch(PATIENT)
        outcome = training.ended()
    assert outcome.exit_code == 0, outcome.output
    status = outcome.status
    failure = status["lastFailure"]
    assert (failure["cause"], failure["rank"]) == ("Hang", 1), failure
    assert "wait_for_data" in failure["traceback"], failure
    assert status["restarts"]["inPlace"] == 1
    assert "suspicion" not in status or not status["suspicion"], "it belonged to the round that is over"
    logs = "".join(path.read_text() for path in sorted((tmp_path / "out" / "logs").glob("stuck-worker-*")))
    assert logs.count("after 1 restarts") == 2


def test_a_job_that_wants_to_be_told_goes_on_as_it_was(tmp_path: Path) -> None:
    with live(job(tmp_path, "sleep", "Notify"), tmp_path / "out", "stuck") as training:
        training.wait_step(5)
        training.patch(SHORT)
        suspicion = training.wait(
            lambda status: (found := status.get("suspicion") or {}).get("confirmed") and found, "a confirmed suspicion"
        )
        status = training.status()
    assert "wait_for_data" in str(suspicion), suspicion
    assert (status["phase"], status["round"]) == ("Running", 1)
    assert not status.get("restarts", {}).get("total", 0)
