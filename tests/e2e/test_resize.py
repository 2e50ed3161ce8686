"""Jobs that change their size while they train, with real processes: the curve is that of a job that never did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import Outcome, elastic, run, small_demo_job
from tests.e2e.live import LiveRun, live

pytestmark = pytest.mark.processes

STEPS = 160
SLOW = [f"slow:rank=0,step={step},seconds=0.04,steps=10" for step in range(1, STEPS, 10)]
"""So that a run is not over before it has been resized, however fast the machine: of each process the first steps."""
TOLERANCE = 1e-6
"""Relative. The samples of a step are the same at any size, the order in which they are added up is not."""


def resized(training: LiveRun, size: int) -> None:
    """Ask for a size and see it train a while."""
    training.resize(size)
    at = training.status()["progress"]["step"]
    training.wait_step(at + 5)


MOE = {
    "name": "moe",
    "options": {
        "layers": 2,
        "heads": 2,
        "width": 32,
        "context": 32,
        "experts": 4,
        # All of them: no choice hangs on the last bit of a sum, which is another one at another size. Of 80,000 choices
        # in a run one flips now and then, and that is a difference of 5e-5 in the loss of its step.
        "experts_per_token": 4,
    },
}
MESHES: dict[str, dict[str, int]] = {
    "ddp": {"dp_shard": 1},
    "fsdp": {"dp_replicate": 1},
    "hsdp": {"dp_shard": 2},
    "tensor": {"tp": 2, "dp_replicate": 1},
    "context": {"cp": 2},
    "pipeline": {"pp": 2},
    "expert": {"ep": 2, "dp_replicate": 1},
}


@pytest.mark.parametrize("family", MESHES)
def test_fewer_pods_and_more_again_train_what_a_constant_size_does(tmp_path: Path, family: str) -> None:
    model = {"model": MOE} if family == "expert" else {}
    checkpoint = {"every": 50, "keep": 3}
    job = elastic(small_demo_job(tmp_path, 4, MESHES[family], STEPS, checkpoint=checkpoint, **model))
    calm = run(job, tmp_path / "calm")
    assert calm.exit_code == 0, calm.output
    smaller = 3 if family in ("ddp", "fsdp") else 2  # of which the mesh can make use
    with live(job, tmp_path / "resized", "stdlib-gpt", faults=SLOW) as training:
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
