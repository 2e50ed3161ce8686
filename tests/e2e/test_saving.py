"""Runs whose checkpoints don't reach storage: none of them says that it succeeded."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.frozen import frozen
from tests.e2e.harness import LIMIT_S, Command, command, run, script_job, small_demo_job, started
from tests.e2e.warm import STALLED_AFTER
from tests.stored import flat_status

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parent / "scripts" / "ddp.py"
STEPS = 20
MESH = {"dpReplicate": 1, "dpShard": 1}


def job_with_timeout(folder: Path, seconds: int, steps: int = STEPS) -> Path:
    """A job of one rank that saves each 7 steps, and waits for so long for storage at its end."""
    path = small_demo_job(folder, 1, MESH, steps)
    job = yaml.safe_load(path.read_text())
    job["spec"].setdefault("checkpoint", {})["timeoutSeconds"] = seconds
    path.write_text(yaml.safe_dump(job))
    return path


def test_a_run_on_a_full_disk_tells_each_failed_save_and_does_not_succeed(tmp_path: Path) -> None:
    job = job_with_timeout(tmp_path, 1)
    outcome = run(job, tmp_path / "out", ["fill-disk:rank=0,step=1,seconds=1000"])
    assert outcome.exit_code == 1, outcome.output
    lines = outcome.output.splitlines()
    unsaved = [number for number, line in enumerate(lines) if "not saved" in line and "No space left on device" in line]
    (failed,) = [number for number, line in enumerate(lines) if line[9:].startswith("failed ")]
    assert unsaved[0] < failed, outcome.output
    assert f"step {STEPS} is not saved" in lines[failed]
    assert "succeeded" not in outcome.output
    status = outcome.status
    assert (status["phase"], status["lastFailure"]["cause"]) == ("Failed", "CheckpointFailed")
    told = {c["type"]: c for c in status["conditions"]}["CheckpointFailed"]
    assert (told["status"], f"step {STEPS} is not saved (nothing is saved yet)" in told["message"]) == ("True", True)
    assert status["restarts"]["total"] == 0


def test_a_job_that_saves_nothing_by_us_succeeds_on_a_full_disk(tmp_path: Path) -> None:
    words = ["python", str(SCRIPT), "--uncompiled", "--steps", "6", "--checkpoint", str(tmp_path / "own.pt")]
    job = script_job(tmp_path, words, replicas=1, checkpoint={"timeoutSeconds": 1})
    outcome = run(job, tmp_path / "out", ["fill-disk:rank=0,step=1,seconds=1000"])
    assert outcome.exit_code == 0, outcome.output
    status = outcome.status
    assert (status["phase"], status["progress"]["step"]) == ("Succeeded", 6)
    assert "CheckpointFailed" not in {c["type"] for c in status["conditions"]}


def test_a_disk_that_gets_room_before_the_limit_is_given_the_last_step(tmp_path: Path) -> None:
    job = job_with_timeout(tmp_path, 600)
    outcome = run(job, tmp_path / "out", [f"fill-disk:rank=0,step={STEPS},seconds=1.5"])
    assert outcome.exit_code == 0, outcome.output
    assert "No space left on device" in outcome.output
    status = outcome.status
    assert (status["phase"], status["checkpoint"]["step"]) == ("Succeeded", STEPS)
    told = {c["type"]: c for c in status["conditions"]}["CheckpointFailed"]
    assert (told["status"], told["message"]) == ("False", f"step {STEPS} is saved")


def _freezes_after_step_7(tmp_path: Path, timeout_s: int) -> tuple[Path, Sequence[str]]:
    """Return the output folder and the command of a run that is slow from step 8 on, so that storage can freeze."""
    out = tmp_path / "out"
    return out, command(job_with_timeout(tmp_path, timeout_s), out, ["slow:rank=0,step=8,seconds=0.3,steps=10"])


def _read_until(process: Command, text: str) -> list[str]:
    """Read the command's output up to a line with this text; return all lines."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"{text!r} is not in:\n{''.join(lines)}")


def _wait_for_condition(out: Path, kind: str) -> dict[str, Any]:
    """Return the status of a run once this condition of it is true. The file is written a little after the terminal."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        status = flat_status(yaml.safe_load((out / "status.yaml").read_text())["status"])
        if (kind, "True") in [(c["type"], c["status"]) for c in status["conditions"]]:
            return status
        assert time.monotonic() < deadline, status["conditions"]
        time.sleep(0.05)


def test_a_file_system_that_freezes_is_told_while_the_run_goes_on(tmp_path: Path) -> None:
    out, arguments = _freezes_after_step_7(tmp_path, 600)
    with started(arguments, {STALLED_AFTER: "1"}) as process:
        _read_until(process, "step 7 is saved")
        with frozen(out / "checkpoints"):
            said = _read_until(process, " stalled ")
            status = _wait_for_condition(out, "CheckpointStalled")
    assert f"{out / 'checkpoints'} has not answered for more than 1 s" in " ".join("".join(said).split())
    assert status["phase"] == "Running"


def test_a_file_system_that_freezes_fails_the_run_and_names_what_cannot_be_killed(tmp_path: Path) -> None:
    out, arguments = _freezes_after_step_7(tmp_path, 4)
    with started(arguments) as process:
        said = _read_until(process, "step 7 is saved")
        with frozen(out / "checkpoints"):
            rest, _ = process.communicate(timeout=LIMIT_S)
            code = process.wait()
    output = "".join(said) + rest
    assert code == 1, output
    assert "has not answered for" in output
    assert str(out / "checkpoints") in output
    assert "can't be killed" in output
    status = flat_status(yaml.safe_load((out / "status.yaml").read_text())["status"])
    assert (status["phase"], status["lastFailure"]["cause"]) == ("Failed", "CheckpointFailed")
    assert status["checkpoint"]["step"] == 7


@contextmanager
def of_three_megabytes(path: Path) -> Iterator[None]:
    """A file system of this size. Skips the test where it can't be mounted."""
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "full", path], check=False).returncode:
        pytest.skip("this machine doesn't let root mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own needs root")
def test_a_run_whose_whole_output_folder_is_full_fails_for_its_checkpoint_alone(tmp_path: Path) -> None:
    path = job_with_timeout(tmp_path, 1, 30)
    job = yaml.safe_load(path.read_text())
    job["spec"]["training"]["model"]["options"] |= {"layers": 2, "width": 128}
    job["spec"]["training"]["batch"] = {"global": 2}  # what is saved has to be large, and nothing else
    path.write_text(yaml.safe_dump(job))
    out = tmp_path / "out"
    with of_three_megabytes(out):
        outcome = run(path, out)
        assert outcome.exit_code == 1, outcome.output
        assert "Crash" not in outcome.output
        assert "step 30 is not saved (nothing is saved yet)" in outcome.output
        status = outcome.status
    assert (status["phase"], status["lastFailure"]["cause"]) == ("Failed", "CheckpointFailed")
    assert status["restarts"]["total"] == 0
