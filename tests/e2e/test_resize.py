"""Jobs that change their size while they train, with real processes: the curve is that of a job that never did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.harness import Outcome, run, small_demo_job
from tests.e2e.live import LiveRun, live

pytestmark = pytest.mark.processes

STEPS = 160
TOLERANCE = 1e-6
"""Relative. The samples of a step are the same at any size, the order in which they are added up is not."""


def elastic(folder: Path, mesh: dict[str, int], **more: Any) -> Path:
    path = small_demo_job(folder, 4, mesh, STEPS, checkpoint={"every": 50, "keep": 3})
    job = yaml.safe_load(path.read_text())
    job["spec"]["workers"] |= {"replicas": 4, "min": 2}
    job["spec"]["recovery"]["elastic"] = {"cooldownSeconds": 0}
    job["spec"] |= more
    path.write_text(yaml.safe_dump(job))
    return path


def resized(training: LiveRun, size: int) -> None:
    """Ask for a size and see it train a while."""
    training.patch({"workers": {"replicas": size}})

    def trains(status: dict[str, Any]) -> bool:
        return bool(status["phase"] == "Running" and status["workers"]["replicas"] == size)

    training.wait(trains, f"{size} pods train")
    at = training.status()["progress"]["step"]
    training.wait_step(at + 5)


@pytest.mark.parametrize("mesh", [{"dp_shard": 1}, {"dp_replicate": 1}, {"dp_shard": 2}], ids=["ddp", "fsdp", "hsdp"])
def test_fewer_pods_and_more_again_train_what_a_constant_size_does(tmp_path: Path, mesh: dict[str, int]) -> None:
    job = elastic(tmp_path, mesh)
    calm = run(job, tmp_path / "calm")
    assert calm.exit_code == 0, calm.output
    smaller = 2 if mesh == {"dp_shard": 2} else 3  # of which the mesh can make use
    with live(job, tmp_path / "resized", "stdlib-gpt") as training:
        training.wait_step(10)
        resized(training, smaller)
        resized(training, 4)
        outcome = training.ended()
    assert outcome.exit_code == 0, outcome.output
    status = outcome.status
    assert [(r["cause"], r["lostSteps"]) for r in status["recoveries"]] == [("Resized", 0), ("Resized", 0)]
    assert status["restarts"]["total"] == status["restarts"]["free"] == 2
    assert_close(outcome, calm)


def assert_close(outcome: Outcome, calm: Outcome) -> None:
    """Each step once, and its loss within the tolerance."""
    ours, theirs = outcome.losses(), calm.losses()
    assert sorted(ours) == sorted(theirs) == list(range(1, STEPS + 1))
    assert len((outcome.out / "metrics.jsonl").read_text().splitlines()) == STEPS, "a step was run twice"
    for step, said in ours.items():
        (loss,), (expected,) = said, theirs[step]
        assert float.fromhex(loss) == pytest.approx(float.fromhex(expected), rel=TOLERANCE), f"step {step}"
