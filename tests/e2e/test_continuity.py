"""A run that loses ranks, pods and its operator has, bit for bit, the losses and the state of one that didn't."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.e2e.harness import Calm, small_demo_job
from tests.e2e.live import live
from trainmaster_operator.cluster.port import Object

STEPS = 50
MESHES = {
    2: {"dpReplicate": 1, "dpShard": 2},
    3: {"dpReplicate": 3, "dpShard": 1},
    4: {"dpReplicate": 2, "dpShard": 2},
}
PATIENT, SHORT = ({"recovery": {"hang": {"limitSeconds": seconds}}} for seconds in (20, 4))
"""A start may take long on a busy machine, and is no hang. While all wait for the stopped one it may be short."""


def hung(status: Object) -> bool:
    return bool((status.get("lastFailure") or {}).get("cause") == "Hang")


@pytest.mark.processes
@pytest.mark.parametrize("ranks", MESHES)
def test_a_run_with_faults_has_the_losses_and_the_state_of_one_without(calm: Calm, tmp_path: Path, ranks: int) -> None:
    seed = int(os.environ.get("TRAINMASTER_TEST_SEED", random.SystemRandom().randrange(10**6)))
    chance = random.Random(seed)
    steps = sorted(chance.sample(range(3, STEPS - 2), 4))
    kinds = chance.sample(["kill", "stop", "kill-pod", "kill-operator"], 4)
    faults = [f"{kind}:rank={chance.randrange(ranks)},step={step}" for kind, step in zip(kinds, steps, strict=True)]
    told = f"TRAINMASTER_TEST_SEED={seed}: {faults}"
    job = small_demo_job(tmp_path, ranks, MESHES[ranks], STEPS)

    undisturbed = calm(job)
    assert undisturbed.exit_code == 0, undisturbed.output
    with live(job, tmp_path / "stormy", "stdlib-gpt", faults=faults) as run:
        run.wait_step(steps[kinds.index("stop")] - 1)
        run.patch(SHORT)
        run.wait(hung, "the stopped rank's hang")
        run.patch(PATIENT)
        stormy = run.ended()
    assert stormy.exit_code == 0, f"{told}\n{stormy.output}"

    restarts = stormy.status["restarts"]
    assert restarts["inPlace"] == 2, f"{told}: one for the killed and one for the stopped rank, not {restarts}"
    assert restarts["pod"] == 1, f"{told}: one for the killed pod, not {restarts}"
    expected = undisturbed.losses()
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert stormy.losses() == expected, told
    assert stormy.final()["digest"] == undisturbed.final()["digest"], told
