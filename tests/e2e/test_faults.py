"""Faults that a rank can't do to itself, in whole runs: each strikes, and training goes on as if it hadn't."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import Calm, run, small_demo_job

pytestmark = pytest.mark.processes

STEPS = 50
MESH = {"dpReplicate": 3, "dpShard": 1}


def test_what_strikes_a_pod_its_operator_or_its_store_changes_no_loss(calm: Calm, tmp_path: Path) -> None:
    job = small_demo_job(tmp_path, 3, MESH, STEPS)
    undisturbed = calm(job)
    assert undisturbed.exit_code == 0, undisturbed.output
    faults = [
        "slow:rank=1,step=5,seconds=0.02,steps=3",
        "partition:rank=1,step=8,seconds=1",
        "lose-store:rank=2,step=15",
        "crash-operator:rank=0,step=24,writes=1",
        "kill-agent:rank=1,step=25",
        "fill-disk:rank=0,step=40,seconds=0.2",
        "exit:rank=2,step=45,code=7",
    ]
    stormy = run(job, tmp_path / "stormy", faults)
    assert stormy.exit_code == 0, stormy.output
    for fault in faults:
        assert f"{fault.partition(':')[0]}, asked for on rank" in stormy.output
    assert "could not be done" not in stormy.output
    assert stormy.status["restarts"]["pod"] == 1
    assert stormy.losses() == undisturbed.losses()
    assert stormy.final()["digest"] == undisturbed.final()["digest"]


def test_a_pod_that_is_lost_with_its_node_is_replaced_on_its_neighbours_word(tmp_path: Path) -> None:
    outcome = run(small_demo_job(tmp_path, 3, MESH, STEPS), tmp_path / "out", ["lose-node:rank=1,step=20"])
    assert outcome.exit_code == 0, outcome.output
    status = outcome.status
    assert "the pod that watches it cannot reach it" in status["lastFailure"]["message"]
    assert (status["restarts"]["pod"], status["incarnations"]) == (1, "0,1,0")
