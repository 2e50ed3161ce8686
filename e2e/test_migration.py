"""A cluster with jobs of the version before is upgraded: nothing restarts, and nothing gets another layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster.places import REPOSITORY
from e2e.kube import JOB, Object
from e2e.world import PLAIN, World
from tests.former import former_status

pytestmark = pytest.mark.exclusive

DEFINITION = "CustomResourceDefinition"
NAME = "distributedtrainingjobs.trainmaster.dev"
FORMER = Path(__file__).parent / "former" / "crd.yaml"
PRESENT = REPOSITORY / "manifests" / "crd" / f"{NAME}.yaml"
PHASES = ("Running", "Succeeded", "Suspended")


def define(world: World, versions: list[Object]) -> None:
    """Replace the versions of the definition, as an upgrade of the chart's CRD does."""
    world.kube.patch(DEFINITION, NAME, "", {"spec": {"versions": versions}})


@pytest.fixture
def former(world: World) -> Iterator[None]:
    """The version before: its definition, and no operator of this version."""
    with world.installation.stopped():
        try:
            define(world, yaml.safe_load(FORMER.read_text()))
            yield
        finally:
            define(world, yaml.safe_load(PRESENT.read_text())["spec"]["versions"])


def leave_behind(world: World, phase: str) -> Object:
    """A job as the version before left it, with the pods that it had.

    The pods only sleep. What agents of that version do without an operator is in tests/simulation/test_migration.py.
    """
    name = phase.lower()
    job = world.script(["sleep", "3600"], name=name, suspend=phase == "Suspended")
    job["spec"]["recovery"] = {"hang": {"limitSeconds": None}}  # the former spelling
    made = world.kube.create(job)
    status = former_status(phase)
    made = world.kube.patch_status(JOB, name, world.namespace, {"status": status})
    assert made["status"] == status
    for slot in range(0 if phase == "Suspended" else 2):
        world.kube.create(pod(world, made, slot, ends=phase == "Succeeded"))
    return made


def pod(world: World, job: Object, slot: int, ends: bool) -> Object:
    name = job["metadata"]["name"]
    owner = {key: job[key] for key in ("apiVersion", "kind")}
    owner |= {"name": name, "uid": job["metadata"]["uid"], "controller": True, "blockOwnerDeletion": False}
    labels = {"job": name, "role": "worker", "slot": str(slot), "incarnation": "0"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": world.pod(slot, name=name),
            "namespace": world.namespace,
            "labels": {f"trainmaster.dev/{key}": value for key, value in labels.items()},
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": PLAIN,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "0" if ends else "3600"],
                }
            ],
        },
    }


def condition(job: Object | None) -> Object | None:
    found = [c for c in ((job or {}).get("status") or {}).get("conditions", []) if c["type"] == "NeedsMigration"]
    return found[0] if found else None


@pytest.mark.usefixtures("former")
def test_an_upgrade_leaves_jobs_of_the_version_before_alone(world: World) -> None:
    before = {phase.lower(): leave_behind(world, phase) for phase in PHASES}
    pods = {name: world.uids(name) for name in before}
    define(world, yaml.safe_load(PRESENT.read_text())["spec"]["versions"])
    world.installation.scale(2)
    for name in before:
        told = world.kube.wait(JOB, name, world.namespace, condition, "the condition NeedsMigration")
        assert (told["status"], told["reason"]) == ("True", "FormerVersion")
        assert "leaves the job and its pods as they are" in told["message"]

    gone = world.pod(1, name="running")
    world.kube.delete("Pod", gone, world.namespace, grace_s=0)
    del pods["running"][gone]
    # A job of this version has come, trained and ended meanwhile: the operator has had its time to do something.
    world.submit(world.training(name="new", steps=30))
    world.succeeded("new")

    for name, job in before.items():
        assert world.uids(name) == pods[name], name
        now = world.kube.get(JOB, name, world.namespace)["status"]
        conditions = [c for c in now["conditions"] if c["type"] != "NeedsMigration"]
        assert {**now, "conditions": conditions} == job["status"], name
    assert world.kube.list("ControllerRevision", world.namespace, "trainmaster.dev/job=running") == []
