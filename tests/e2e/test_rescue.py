"""What a crash costs where memory holds the state: survivors' last step, or that of each rank's own saves."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.harness import Calm, run, small_demo_job

STEPS = 30
KINDS = ("kill", "raise", "kill")
HSDP, DDP, FSDP = {"dpReplicate": 2, "dpShard": 2}, {"dpReplicate": 4}, {"dpShard": 4}


def in_memory(folder: Path, mesh: dict[str, int], pods: int, **ram: Any) -> Path:
    """A job of four ranks in so many pods that saves nothing to storage before its end."""
    path = small_demo_job(folder, 4, mesh, STEPS, checkpoint={"every": 1000, "keep": 3})
    job = yaml.safe_load(path.read_text())
    job["spec"]["workers"] |= {"replicas": pods, "ranksPerPod": 4 // pods}
    job["spec"].setdefault("checkpoint", {})["ram"] = ram
    path.write_text(yaml.safe_dump(job))
    return path


@pytest.mark.processes
@pytest.mark.parametrize(
    ("mesh", "pods", "ram"),
    [
        (HSDP, 1, {"every": 0}),
        (DDP, 4, {"every": 0}),
        (HSDP, 4, {"every": 0}),
        # Without peers: with them a save is left out while the copies of the one before are under way.
        (FSDP, 4, {"every": 1, "peers": 0}),
    ],
    ids=["hsdp in one pod", "ddp", "hsdp", "fsdp with its own memory"],
)
def test_killed_ranks_cost_no_step(
    calm: Calm, tmp_path: Path, mesh: dict[str, int], pods: int, ram: dict[str, int]
) -> None:
    seed = int(os.environ.get("TRAINMASTER_TEST_SEED", random.SystemRandom().randrange(10**6)))
    chance = random.Random(seed)
    steps = sorted(chance.sample(range(3, STEPS - 1), 3))
    faults = [f"{kind}:rank={chance.randrange(4)},step={step}" for kind, step in zip(KINDS, steps, strict=True)]
    told = f"TRAINMASTER_TEST_SEED={seed}: {faults}"
    job = in_memory(tmp_path, mesh, pods, **ram)

    undisturbed = calm(job)
    assert undisturbed.exit_code == 0, undisturbed.output
    stormy = run(job, tmp_path / "stormy", faults)
    assert stormy.exit_code == 0, f"{told}\n{stormy.output}"

    recoveries = stormy.status["recoveries"]
    assert [(r["lostSteps"], r["resumedStep"]) for r in recoveries] == [(0, step - 1) for step in steps], told
    assert stormy.losses() == undisturbed.losses(), told
    assert len((stormy.out / "metrics.jsonl").read_text().splitlines()) == STEPS, f"{told}: a step was run twice"
    assert stormy.final()["digest"] == undisturbed.final()["digest"], told
