"""One pod of a job comes back with another torch, as when an image's tag was moved: its ranks must not train."""

from __future__ import annotations

import pytest

from e2e.cluster import images
from e2e.cluster.shell import until
from e2e.kube import Object
from e2e.world import TRAINER, World

SCRIPT = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(100_000):
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of torch {torch.__version__} summed {total.item():.0f} in step {step}", flush=True)
    time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def _other_torch() -> None:
    if images.OTHER_TORCH not in images.LAYOUT.digests():
        pytest.skip("needs an image with another torch: `python -m e2e.cluster other-torch WHEEL` builds it")


def give_another_torch(world: World, slot: int) -> None:
    """The kubelet starts the container again with the other image, and the pod stays."""
    pod = world.kube.get("Pod", world.pod(slot), world.namespace)
    (name,) = [container["name"] for container in pod["spec"]["containers"]]
    patch = {"spec": {"containers": [{"name": name, "image": images.OTHER_TORCH}]}}
    world.kube.patch("Pod", world.pod(slot), world.namespace, patch)


def assert_both_pods_and_torch_are_named(world: World, failed: Object) -> None:
    failure = failed["lastFailure"]
    assert failure["cause"] == "ConfigError"
    for word in (world.pod(0), world.pod(1), "torch"):
        assert word in failure["message"], failure


def test_a_pod_of_our_trainer_with_another_torch_takes_no_step(world: World) -> None:
    world.submit(world.training(steps=100_000))
    world.wait_step(30)
    give_another_torch(world, 1)
    failed = world.wait_phase("Failed", limit_s=180)
    assert_both_pods_and_torch_are_named(world, failed)
    assert failed["round"] == 1


def test_a_pod_of_a_script_with_another_torch_takes_part_in_no_collective(world: World) -> None:
    world.submit(world.script(["python3", "-c", SCRIPT], image=TRAINER))
    world.wait_phase("Running")
    until(lambda: "summed 2 in step 20" in world.logs(), 60.0, "its ranks don't train")
    first = world.execute(world.pod(0), "python3", "-c", "import torch; print(torch.__version__)").strip()
    give_another_torch(world, 1)
    failed = world.wait_phase("Failed", limit_s=180)
    assert_both_pods_and_torch_are_named(world, failed)
    assert {line.split()[4] for line in world.logs().splitlines() if line.startswith("rank ")} == {first}
