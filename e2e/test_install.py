"""What docs/install*.md and the chart promise of the first day on a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from e2e.installation import NAMESPACE, OPERATOR, RELEASE
from e2e.kube import Object
from e2e.test_pages import apply_smaller
from e2e.world import World
from tests.docs import fragments
from tests.docs.blocks import Block, all_blocks

BLOCKS = [
    block
    for block in all_blocks()
    if block.page.startswith("docs/install") and block.language == "yaml" and not block.has("illustrative")
]
DEFINITION = "distributedtrainingjobs.trainmaster.dev"


def name_of(block: Block) -> str:
    return f"{block.page}:{BLOCKS.index(block)}"


@pytest.mark.parametrize("block", BLOCKS, ids=name_of)
def test_the_manifests_of_the_pages_pass_a_dry_run_of_the_api_server(world: World, block: Block) -> None:
    for document in yaml.safe_load_all(block.text):
        obj = document if "kind" in document else fragments.complete(document)
        where = [] if "namespace" in obj["metadata"] else ["-n", world.namespace]
        if obj["kind"] == "Pod" and "serviceAccountName" in obj["spec"]:  # a command of the page makes it
            world.kube.kubectl("create", "serviceaccount", obj["spec"]["serviceAccountName"], *where)
        told = world.kube.kubectl(
            "create", "--dry-run=server", "--validate=strict", "-f", "-", *where, stdin=json.dumps(obj)
        )
        assert "created (server dry run)" in told


@pytest.mark.exclusive
def test_helm_test_runs_a_job_that_loses_a_rank_and_recovers(world: World) -> None:
    told = world.installation.helm("test", RELEASE, "--namespace", NAMESPACE, "--timeout", "5m", "--logs")
    assert "the job lost a rank, recovered and succeeded" in told
    assert world.kube.list("DistributedTrainingJob", NAMESPACE) == []


def test_the_example_of_four_pods_runs_on_a_claim_that_several_nodes_mount(world: World, tmp_path: Path) -> None:
    name = f"checkpoints-{world.namespace}"
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    claim = {"accessModes": modes, "storageClassName": "", "volumeName": name, "resources": {"requests": size}}
    world.kube.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": size,
                "accessModes": modes,
                "storageClassName": "",
                "claimRef": {"namespace": world.namespace, "name": "checkpoints"},
                "hostPath": {"path": str(world.folder)},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "checkpoints", "namespace": world.namespace},
            "spec": claim,
        },
    )
    try:
        apply_smaller(world, "manifests/examples/cluster-gpt.yaml", tmp_path)
    finally:
        world.kube.delete("PersistentVolume", name)


@pytest.mark.exclusive
def test_an_operator_beside_a_newer_definition_says_so(world: World) -> None:
    """The definition of this chart is no difference to its operators; one more field is."""
    told = [world.kube.logs(pod["metadata"]["name"], NAMESPACE) for pod in world.installation.replicas()]
    assert not any("CustomResourceDefinition is" in log or "schema of jobs could not be read" in log for log in told)
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/teleport"
    change([{"op": "add", "path": path, "value": {"type": "string"}}], world)
    try:
        leader = world.installation.leader()
        other = next(
            pod["metadata"]["name"] for pod in world.installation.replicas() if pod["metadata"]["name"] != leader
        )
        before = {pod["metadata"]["name"] for pod in world.installation.replicas()}

        def arrived(_: Object | None) -> str:
            found = [pod for pod in world.installation.replicas() if pod["metadata"]["name"] not in before]
            return next((pod["metadata"]["name"] for pod in found if is_ready(pod)), "")

        world.kube.delete("Pod", other, NAMESPACE)
        new = world.kube.wait("Deployment", OPERATOR, NAMESPACE, arrived, "another replica is Ready", 120)
        assert "is newer than this operator, which does not obey spec.teleport" in world.kube.logs(new, NAMESPACE)
    finally:
        change([{"op": "remove", "path": path}], world)


def is_ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def change(patch: list[dict[str, object]], world: World) -> None:
    """Patch the definition of jobs."""
    world.kube.kubectl("patch", "crd", DEFINITION, "--type=json", f"--patch={json.dumps(patch)}")
