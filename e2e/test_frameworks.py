"""Ranks of other frameworks find each other in pods of other nodes, and again after one was killed.

TensorFlow's and Horovod's own packages are too large for the machine of these tests, so stand-ins take their place. In
`make frameworks` the real ones do the same on one machine.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from e2e.world import World

STAND_INS = Path(__file__).parent / "stand_ins"
WEIGHT = sum((1 + 2) * step for step in range(1, 41))


@pytest.mark.parametrize("framework", ["TensorFlow", "Horovod"])
def test_ranks_of_a_framework_meet_again_after_one_was_killed(world: World, framework: str) -> None:
    shutil.copytree(STAND_INS, world.folder / "stand_ins")
    job = world.script(
        ["python3", "/data/stand_ins/train.py", framework, "/data"],
        container={
            "env": [{"name": "PYTHONPATH", "value": "/data/stand_ins"}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        },
        template={"volumes": [{"name": "data", "hostPath": {"path": str(world.folder)}}]},
        framework=framework,
    )
    world.submit(job)
    status = world.succeeded()
    assert status["restarts"]["inPlace"] == status["restarts"]["total"] == 1
    (recovery,) = status["recoveries"]
    assert (recovery["cause"], recovery["rank"]) == ("Crash", 1)
    assert status["lastFailure"]["signal"] == "SIGKILL"
    assert [json.loads((world.folder / f"final-{rank}.json").read_text()) for rank in (0, 1)] == [WEIGHT] * 2
    logs = world.trainmaster("logs", "job", "--all")
    assert [logs.count(f"rank {rank} goes on after step {step}") for rank in (0, 1) for step in (0, 20)] == [1] * 4
    if framework == "TensorFlow":
        assert status["progress"]["step"] == 40
        assert (recovery["step"], recovery["resumedStep"]) == (23, 20)
