"""A rank that dies while nobody leads: its agents restart it, and the next leader agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import Calm, run, small_demo_job

pytestmark = pytest.mark.processes

STEPS = 50
MESH = {"dpReplicate": 3, "dpShard": 1}
AWAY = ["api-outage:rank=0,step=20,seconds=8", "kill-operator:rank=0,step=20"]
"""The operator dies, and its successor can read no job for as long as the rest of the training takes."""


def test_training_ends_as_if_nothing_had_happened_and_is_counted_by_who_comes_back(calm: Calm, tmp_path: Path) -> None:
    job = small_demo_job(tmp_path, 3, MESH, STEPS)
    undisturbed = calm(job)
    assert undisturbed.exit_code == 0, undisturbed.output
    stormy = run(job, tmp_path / "stormy", [*AWAY, "kill:rank=1,step=30"])
    assert stormy.exit_code == 0, stormy.output
    status = stormy.status
    assert (status["round"], status["roundMinor"]) == (2, 1), stormy.output
    assert status["restarts"]["inPlace"] == 1
    assert (status["lastFailure"]["rank"], status["lastFailure"]["signal"]) == (1, "SIGKILL")
    assert [(r["round"], r["cause"], r["rank"]) for r in status["recoveries"]] == [(2, "Crash", 1)]
    assert "operator    the operator died (SIGKILL), and a new one starts" in stormy.output
    assert stormy.losses() == undisturbed.losses()
    assert stormy.final()["digest"] == undisturbed.final()["digest"]
