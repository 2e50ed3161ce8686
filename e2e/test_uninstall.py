"""Taking the chart away takes nothing from people who train."""

from __future__ import annotations

import pytest

from e2e.installation import NAMESPACE
from e2e.kube import Object
from e2e.test_failures import assert_one_curve
from e2e.world import World
from trainmaster_operator.runtime.nodes.node_taints import TAINT

pytestmark = pytest.mark.exclusive


def test_an_uninstall_leaves_jobs_and_their_pods_and_another_install_takes_them_up(world: World) -> None:
    world.submit(world.training(steps=200))
    world.wait_step(20)
    job, pods = world.job()["metadata"]["uid"], world.uids()
    world.installation.uninstall()
    try:
        for replica in world.installation.replicas():
            name = replica["metadata"]["name"]
            world.kube.wait("Pod", name, NAMESPACE, lambda found: found is None, f"{name} is gone")
        assert world.job()["metadata"]["uid"] == job
        assert world.uids() == pods
    finally:
        world.installation.install()
    status = world.succeeded()
    assert world.uids() == pods
    assert status["restarts"]["total"] == 0
    assert_one_curve(world, 200)


def test_an_uninstall_takes_our_taint_from_nodes_and_leaves_those_of_others(world: World) -> None:
    theirs = {"key": "example.com/repair", "value": "soon", "effect": "PreferNoSchedule"}
    node = world.kube.list("Node")[-1]["metadata"]["name"]

    def taints() -> list[Object]:
        found: list[Object] = world.kube.get("Node", node)["spec"].get("taints") or []
        return found

    before = taints()
    try:
        world.installation.install(nodes={"taint": True})
        world.kube.patch("Node", node, "", {"spec": {"taints": [*before, theirs, TAINT]}})
        world.installation.uninstall()
        assert taints() == [*before, theirs]
    finally:
        world.kube.patch("Node", node, "", {"spec": {"taints": before or None}})
        world.installation.install()
