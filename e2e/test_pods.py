"""What becomes of a job's pods and Service when somebody else changes them, and of a pod that is replaced."""

from __future__ import annotations

import json
import time

import pytest

from e2e.installation import NAMESPACE
from e2e.kube import Object
from e2e.processor_time import Limit
from e2e.world import World
from trainmaster.contract.wire import ExitCode

HANGS_BESIDE_A_BROKEN_DEVICE = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "0":
    time.sleep(2)
    sys.exit({ExitCode.HARDWARE_FAULT.value})
time.sleep(3600)
"""


def volume(world: World, *modes: str) -> str:
    """A claim with a volume behind it, which is a folder that all nodes share."""
    name, size = f"single-{world.namespace}", {"storage": "1Gi"}
    claim = {"accessModes": list(modes), "storageClassName": "", "volumeName": name, "resources": {"requests": size}}
    world.kube.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": size,
                "accessModes": list(modes),
                "storageClassName": "",
                "claimRef": {"namespace": world.namespace, "name": "single"},
                "hostPath": {"path": str(world.folder)},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "single", "namespace": world.namespace},
            "spec": claim,
        },
    )
    return name


def test_a_claim_of_one_node_brings_all_pods_to_one_node(world: World) -> None:
    name = volume(world, "ReadWriteOnce")
    try:
        world.submit(world.training(replicas=3, steps=60, checkpoint={"every": 10, "volume": {"claim": "single"}}))
        world.wait_step(10)
        nodes = {world.node_of(pod["metadata"]["name"]) for pod in world.pods()}
        assert len(nodes) == 1
        world.succeeded()
    finally:
        world.kube.delete("PersistentVolume", name)


def test_a_claim_of_one_pod_for_several_is_refused_in_a_sentence(world: World) -> None:
    name = volume(world, "ReadWriteOncePod")
    try:
        world.submit(world.training(checkpoint={"volume": {"claim": "single"}}))
        status = world.wait_phase("Failed")
        assert "ReadWriteOncePod" in status["lastFailure"]["message"]
        assert world.pods() == []
    finally:
        world.kube.delete("PersistentVolume", name)


def test_a_service_that_is_deleted_comes_back(world: World) -> None:
    world.submit(world.training(steps=100_000))
    world.wait_step(10)
    first = world.kube.get("Service", "job", world.namespace)["metadata"]["uid"]
    world.kube.delete("Service", "job", world.namespace)

    def another(found: Object | None) -> bool:
        return found is not None and found["metadata"]["uid"] != first

    world.kube.wait("Service", "job", world.namespace, another, "another Service", 10)


def test_the_ranks_of_a_replaced_pod_that_hang_do_not_use_up_its_grace(world: World) -> None:
    """The grace is longer than this test would wait: only the agent's own kill ends the pod in time."""
    command = ["python3", "-c", HANGS_BESIDE_A_BROKEN_DEVICE]
    job = world.script(command, replicas=1, template={"terminationGracePeriodSeconds": 3600})
    job["spec"]["workers"]["ranksPerPod"] = 2
    world.submit(job)

    def ends(found: Object | None) -> bool:
        return found is not None and "deletionTimestamp" in found["metadata"]

    world.kube.wait("Pod", world.pod(0), world.namespace, ends, "it is deleted", 60)
    began = time.monotonic()
    world.gone("Pod", world.pod(0), 120)
    print(f"the pod was gone {time.monotonic() - began:.1f} s after it was deleted")
    world.kube.wait("Pod", world.pod(0, 1), world.namespace, lambda found: found is not None, "it is replaced")


@pytest.mark.exclusive
def test_after_an_uninstall_the_next_install_leads_at_once(world: World) -> None:
    """The lease stays with a pod that is gone, since Helm takes the right to release it first. A leader that waited for
    the end of this one would come after ten minutes."""
    slow = ["--lease-seconds=600"]
    try:
        world.installation.install(extraArgs=slow)
        replicas = world.installation.replicas()
        world.installation.uninstall()
        for replica in replicas:
            name = replica["metadata"]["name"]
            world.kube.wait("Pod", name, NAMESPACE, lambda found: found is None, f"{name} is gone")
        world.installation.install(extraArgs=slow)
    finally:
        world.installation.install()


@pytest.mark.exclusive
def test_without_an_operator_the_commands_say_so_and_a_deleted_pod_has_a_row(world: World) -> None:
    world.submit(world.training(steps=100_000))
    world.wait_step(10)
    world.installation.scale(0)
    try:
        world.kube.delete("Pod", world.pod(1), world.namespace)
        world.gone("Pod", world.pod(1))

        told, limit = "", Limit(120)
        while "No operator has led for" not in told:
            assert limit.left_s() > 0, told
            time.sleep(2)
            told = world.trainmaster("status", "job")
        assert "ETA" not in told
        assert world.pod(1) in told
        assert "Missing" in told
    finally:
        world.installation.scale(2)
    condition = world.wait(
        lambda status: next((c for c in status["conditions"] if c["type"] == "OperatorAbsent"), None), "the condition"
    )
    assert condition["status"] == "False"
    assert condition["message"].startswith("no operator led from")


@pytest.mark.exclusive
def test_what_an_autoscaler_gave_a_pod_stays_when_the_leader_changes(world: World) -> None:
    world.submit(world.training(steps=100_000))
    world.wait_step(10)
    pod = world.pod(0)
    given = {"spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": "300m"}}}]}}
    world.kube.kubectl("patch", "pod", pod, "-n", world.namespace, "--subresource", "resize", "-p", json.dumps(given))
    leader = world.installation.leader()
    world.kube.delete("Pod", leader, NAMESPACE)
    world.installation.leader(other_than=leader)
    world.installation.wait_ready()
    step = world.status()["progress"]["step"]
    world.wait_step(step + 100)
    found = world.kube.get("Pod", pod, world.namespace)
    assert found["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "300m"
