"""Two pods of a job have different torches, as when an image's tag was moved before one node pulled it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import images, nodes
from e2e.cluster.containerd import LAYOUT
from e2e.cluster.shell import run
from e2e.kube import Object
from e2e.machine import Machine
from e2e.world import TRAINER, World

pytestmark = pytest.mark.exclusive  # Both tests move one tag.

MOVED = "docker.io/trainmaster/moved:e2e"
"""A tag that means TRAINER on one node, and on another one the image with another torch."""
NODES = {"node2": TRAINER, "node3": images.OTHER_TORCH}
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("enters its first collective", flush=True)
dist.all_reduce(torch.ones(1))
"""


@pytest.fixture(autouse=True)
def _moved_tag(machine: Machine) -> Iterator[None]:
    if images.OTHER_TORCH not in LAYOUT.digests():
        pytest.skip("needs an image with another torch: `python -m e2e.cluster other-torch WHEEL` builds it")
    sockets = {node.name: node.socket for node in nodes.known()}
    for name, image in NODES.items():
        _ctr(sockets[name], "tag", "--force", image, MOVED)
    yield
    for name in NODES:
        _ctr(sockets[name], "remove", MOVED)


def _ctr(socket: str, *words: str) -> None:
    run("ctr", "--address", socket, "--namespace", "k8s.io", "images", *words)


def one_pod_on_each_node(job: Object) -> Object:
    """Return the job with the image whose tag was moved, and a pod on each node that has it."""
    spec = job["spec"]["workers"]["template"]["spec"]
    spec["containers"][0] |= {"image": MOVED, "imagePullPolicy": "Never"}
    on = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(NODES)}]}
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"trainmaster.dev/job": "job"}}}
    spec["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [on]}},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
    }
    return job


def assert_both_pods_and_their_torches_are_named(world: World) -> None:
    failure = world.wait_phase("Failed", limit_s=180)["lastFailure"]
    assert failure["cause"] == "ConfigError"
    for word in (world.pod(0), world.pod(1), "torch"):
        assert word in failure["message"], failure


def test_pods_of_our_trainer_with_two_torches_train_no_step(world: World) -> None:
    world.submit(one_pod_on_each_node(world.training()))
    assert_both_pods_and_their_torches_are_named(world)
    assert not (world.folder / "output" / "metrics.jsonl").exists()


def test_pods_of_a_script_with_two_torches_enter_no_collective(world: World) -> None:
    world.submit(one_pod_on_each_node(world.script(["python3", "-c", SCRIPT])))
    assert_both_pods_and_their_torches_are_named(world)
    assert "enters its first collective" not in world.logs()
