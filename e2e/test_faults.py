"""`trainmaster fault` on a cluster: by way of the API server into the pods, by a person's own rights."""

from __future__ import annotations

from e2e.test_failures import assert_one_curve
from e2e.world import PLAIN_TORCH, World

STEPPING = (
    "import time, torch\n"
    "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)\n"
    "for step in range(2000):\n"
    "    optimizer.step()\n"
    "    time.sleep(0.01)\n"
)


def test_a_rank_its_store_and_its_pod_break_when_asked_for(world: World) -> None:
    name = world.submit(world.training(steps=300))
    world.wait_step(20)
    world.trainmaster("fault", name, "kill:rank=1")
    world.wait_step(60)
    world.trainmaster("fault", name, "lose-store:rank=0", "slow:rank=1,seconds=0.05,steps=5")
    world.wait_step(100)
    world.trainmaster("fault", name, "kill-pod:rank=1")
    status = world.succeeded()
    assert status["restarts"]["inPlace"] == 1
    assert [r["cause"] for r in status["recoveries"]][:2] == ["Crash", "StoreLost"]
    assert {p["metadata"]["name"] for p in world.pods()} == {world.pod(0), world.pod(1, 1)}
    assert_one_curve(world, 300)


def test_a_script_in_an_image_of_its_own_breaks_too(world: World) -> None:
    name = world.submit(world.script(["python3", "-c", STEPPING], image=PLAIN_TORCH, replicas=1))
    world.wait_step(20)
    assert "does it in its next step" in world.trainmaster("fault", name, "exit:rank=0,code=7")
    status = world.succeeded()
    assert status["lastFailure"]["exitCode"] == 7
    assert status["restarts"]["inPlace"] == 1
