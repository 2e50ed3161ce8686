"""The chart under a running job, agents of another release, and the rights that all of it took."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from e2e.installation import CHART, NAMESPACE, OPERATOR, RELEASE, VALUES
from e2e.machine import Machine
from e2e.test_failures import assert_one_curve
from e2e.test_revisions import waits
from e2e.world import TRAINER, World

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
UNSEEN = {
    ("trainmaster.dev", "distributedtrainingjobs/finalizers", "update"),  # asked by an admission plugin, not by us
    ("", "secrets", "update"),  # when certificates are renewed, after months
    ("", "services", "create"),  # an apply that creates needs it, and the log calls it a patch
    ("", "configmaps", "create"),
}
"""Rights whose use these tests can't show."""
BY_VALUES = {("", "nodes", verb) for verb in ("get", "list", "patch")}
"""Rights that the values nodes.taint and nodes.list grant: some tests install the chart with them for a while."""


@pytest.mark.exclusive
def test_upgrade_and_rollback_touch_no_running_job_and_a_new_pod_of_it_has_the_image_of_its_run(
    world: World, tmp_path: Path
) -> None:
    newer = tmp_path / "trainmaster"
    shutil.copytree(CHART, newer)
    chart = yaml.safe_load((newer / "Chart.yaml").read_text())
    (newer / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": "99.0.0"}))

    world.submit(world.training(steps=400))
    world.wait_step(20)
    before = world.uids()
    replicas = {pod["metadata"]["uid"] for pod in world.installation.replicas()}
    image = {**VALUES["trainerImage"], "tag": "next"}
    try:
        world.installation.install(newer, podAnnotations={"e2e/release": "newer"}, trainerImage=image)
        present = [p["metadata"] for p in world.installation.replicas() if not p["metadata"].get("deletionTimestamp")]
        assert {meta["uid"] for meta in present}.isdisjoint(replicas)
        assert world.uids() == before

        world.kube.delete("Pod", world.pod(1), world.namespace)
        world.kube.wait("Pod", world.pod(1, 1), world.namespace, lambda found: found is not None, "it is replaced")
        assert world.image(1, 1) == TRAINER
        assert not waits(world.wait_phase("Running"))
        between = world.uids()
        assert len(before.items() & between.items()) == 1
    finally:
        world.installation.helm("rollback", RELEASE, "--namespace", NAMESPACE)
        world.installation.wait_ready()
    status = world.succeeded()
    assert world.uids() == between
    assert status["restarts"]["total"] == 0
    assert_one_curve(world, 400)


def test_an_agent_of_the_release_before(world: World) -> None:
    """It speaks protocol n-1: the operator of this release understands it."""
    messages = "/opt/trainmaster/trainmaster/contract/wire/message_codec.py"
    older = {
        "name": "older",
        "image": "docker.io/library/python:e2e",
        "command": ["sed", "-i", "s/^PROTOCOL = 1$/PROTOCOL = 0/", messages],
        "volumeMounts": [{"name": "trainmaster-agent", "mountPath": "/opt/trainmaster"}],
    }
    told = "import trainmaster.contract.wire.message_codec as m; print('protocol', m.PROTOCOL)"
    command = ["python3", "-c", f"import sys; sys.path.append('/opt/trainmaster'); {told}"]
    world.submit(world.script(command, template={"initContainers": [older]}))
    world.succeeded()
    assert "protocol 0" in world.logs()


@pytest.mark.exclusive
@pytest.mark.last
def test_the_operator_needs_and_has_the_same_rights(world: World, machine: Machine) -> None:
    """What all tests before this one made it do, against what the chart grants."""
    used = set()  # or refused: by quotas, in namespaces that go, and while the chart is away
    for line in machine.audit_log.read_text().splitlines():
        entry = json.loads(line)
        target = entry.get("objectRef")
        if entry["user"].get("username") != ACCOUNT or not target:
            continue
        resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
        used.add((target.get("apiGroup", ""), resource, entry["verb"]))
    granted = set()
    for kind in ("clusterrole", "role"):
        ours = f"app.kubernetes.io/instance={RELEASE}"
        listing = json.loads(world.kube.kubectl("get", kind, "-A", "-o", "json", "-l", ours))
        for role in listing["items"]:
            labels = role["metadata"].get("labels", {})
            if "aggregate" in json.dumps(labels) or labels.get("app.kubernetes.io/component") == "test":
                continue  # for people, and for `helm test`
            for rule in role["rules"]:
                if "nonResourceURLs" in rule:
                    continue  # for scrapers
                granted |= {
                    (group, resource, verb)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                }
    assert used - granted - BY_VALUES == set()
    assert granted - used <= UNSEEN
