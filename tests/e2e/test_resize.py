"""Jobs that change their size while they train, with real processes: the curve is that of a job that never did."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.harness import Calm, Outcome, elastic, small_demo_job
from tests.e2e.live import LiveRun, live

pytestmark = pytest.mark.processes

ENDLESS = 100_000
SLOW = [f"slow:rank=0,step={step},seconds=0.05,steps=10" for step in range(1, 400, 10)]
"""So that few steps are trained while the sizes change: they are trained again at a constant size."""
TOLERANCE = 1e-6
"""Relative. The samples of a step are the same at any size, the order in which they are added up is not."""


def resized(run: LiveRun, size: int) -> None:
    """Ask for a size and see it train a while."""
    run.resize(size)
    at = run.status()["progress"]["step"]
    run.wait_step(at + 5)


MOE = {
    "name": "moe",
    "options": {
        "layers": 1,
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
    "ddp": {"dpShard": 1},
    "fsdp": {"dpReplicate": 1},
    "hsdp": {"dpShard": 2},
    "tensor": {"tp": 2, "dpReplicate": 1},
    "context": {"cp": 2},
    "pipeline": {"pp": 2},
    "expert": {"ep": 2, "dpReplicate": 1},
}


@pytest.mark.parametrize("family", MESHES)
def test_fewer_pods_and_more_again_train_what_a_constant_size_does(calm: Calm, tmp_path: Path, family: str) -> None:
    model = {"model": MOE} if family == "expert" else {}
    # At a constant rate steps are the same however many follow.
    training = {"checkpoint": {"every": 50, "keep": 3}, "optimizer": {"lr": 5e-3, "schedule": "Constant"}, **model}
    smaller = 3 if family in ("ddp", "fsdp") else 2  # of which the mesh can make use
    job = elastic(small_demo_job(tmp_path, 4, MESHES[family], ENDLESS, **training))
    with live(job, tmp_path / "resized", "stdlib-gpt", faults=SLOW) as run:
        run.wait_step(10)
        resized(run, smaller)
        resized(run, 4)
        run.process.send_signal(signal.SIGINT)
        outcome = run.ended()
    assert outcome.exit_code == 130, outcome.output
    status = outcome.status
    assert [(r["cause"], r["lostSteps"]) for r in status["recoveries"]] == [("Resized", 0), ("Resized", 0)]
    assert (status["restarts"]["total"], status["restarts"]["free"]) == (0, 2)
    undisturbed = calm(small_demo_job(tmp_path, 4, MESHES[family], status["progress"]["step"], **training))
    assert undisturbed.exit_code == 0, undisturbed.output
    assert_close(outcome, undisturbed)


def assert_close(outcome: Outcome, undisturbed: Outcome) -> None:
    """Each step once, and its loss within the tolerance."""
    ours, theirs = outcome.losses(), undisturbed.losses()
    assert sorted(ours) == sorted(theirs) == list(range(1, len(ours) + 1))
    assert len((outcome.out / "metrics.jsonl").read_text().splitlines()) == len(ours), "a step was run twice"
    for step, said in ours.items():
        (loss,), (expected,) = said, theirs[step]
        assert float.fromhex(loss) == pytest.approx(float.fromhex(expected), rel=TOLERANCE), f"step {step}"
