"""The way of docs/install.md through a registry inside the cluster: its manifest, `make images`, and `helm install`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from e2e.cluster import images, registry
from e2e.cluster.shell import until
from e2e.kube import Object
from e2e.test_install import BLOCKS
from e2e.world import PLAIN, World

pytestmark = pytest.mark.exclusive

PORT = 30500
TAG = "from-the-cluster"


def objects(world: World) -> list[Object]:
    """The page's manifest in the test's namespace, with Debian's program in place of an image that no node has."""
    (block,) = [block for block in BLOCKS if "image: registry:2" in block.text]
    deployment, service = yaml.safe_load_all(block.text)
    registry.unpack()
    shutil.copy(registry.PROGRAM, world.folder / "registry")
    (world.folder / "registry.yml").write_text(registry.settings_for(":5000", Path("/tmp/images")))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container |= {"image": PLAIN, "command": ["/programs/registry", "serve", "/programs/registry.yml"]}
    container["volumeMounts"] = [{"name": "programs", "mountPath": "/programs"}]
    pod["volumes"] = [{"name": "programs", "hostPath": {"path": str(world.folder)}}]
    for obj in (deployment, service):
        obj["metadata"]["namespace"] = world.namespace
    return [deployment, service]


@contextmanager
def forwarded(world: World) -> Iterator[None]:
    """The page's `kubectl port-forward`."""
    words = ("port-forward", "-n", world.namespace, "service/registry", f"{PORT}:5000")
    process = subprocess.Popen(world.kube.command(*words), stdout=subprocess.DEVNULL)
    try:
        until(registry.Registry(f"127.0.0.1:{PORT}").answers, 60, "the registry of the cluster doesn't answer here")
        yield
    finally:
        process.terminate()
        process.wait()


def test_nodes_pull_what_make_images_pushed_to_a_registry_inside_the_cluster(world: World, tmp_path: Path) -> None:
    world.kube.apply(*objects(world))
    world.kube.kubectl("rollout", "status", "-n", world.namespace, "deployment/registry", "--timeout=120s")
    file = tmp_path / "values-images.yaml"
    with forwarded(world):
        images.publish(f"127.0.0.1:{PORT}/trainmaster", TAG, file)
    values = yaml.safe_load(file.read_text())
    names = {key: f"{image['repository']}@{image['digest']}" for key, image in values.items()}
    try:
        world.installation.install(**values)
        # A replica of before may still be ending: the Deployment doesn't count it any more.
        new = [pod for pod in world.installation.replicas() if not pod["metadata"].get("deletionTimestamp")]
        assert len(new) == 2
        for replica in new:
            assert [each["image"] for each in replica["spec"]["containers"]] == [names["image"]]
        world.submit(world.training(replicas=1, steps=20))
        world.succeeded()
        (pod,) = world.pods()
        assert [each["image"] for each in pod["spec"]["containers"]] == [names["trainerImage"]]
    finally:
        world.installation.install()
