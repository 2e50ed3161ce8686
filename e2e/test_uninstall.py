"""Taking the chart away takes nothing from people who train."""

from __future__ import annotations

import pytest

from e2e.installation import NAMESPACE
from e2e.test_failures import assert_one_curve
from e2e.world import World

pytestmark = pytest.mark.exclusive


def test_an_uninstall_leaves_jobs_and_their_pods_and_another_install_takes_them_up(world: World) -> None:
    world.submit(world.training(steps=200))
    world.wait_step(20)
    job, pods = world.job()["metadata"]["uid"], {pod["metadata"]["uid"] for pod in world.pods()}
    world.installation.uninstall()
    try:
        for replica in world.installation.replicas():
            name = replica["metadata"]["name"]
            world.kube.wait("Pod", name, NAMESPACE, lambda found: found is None, f"{name} is gone")
        assert world.job()["metadata"]["uid"] == job
        assert {pod["metadata"]["uid"] for pod in world.pods()} == pods
    finally:
        world.installation.install()
    status = world.succeeded()
    assert {pod["metadata"]["uid"] for pod in world.pods()} == pods
    assert status["restarts"]["total"] == 0
    assert_one_curve(world, 200)
