"""A job's life as its owner directs it."""

from __future__ import annotations

from e2e.kube import JOB
from e2e.test_failures import assert_one_curve
from e2e.world import World


def test_suspend_and_resume(world: World) -> None:
    world.submit(world.training(steps=150, every=50))
    world.wait_step(20)
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"suspend": True}})
    status = world.wait_phase("Suspended")
    stopped_at = status["checkpoint"]["step"]
    assert stopped_at >= 20
    for pod in world.pods():
        world.gone("Pod", pod["metadata"]["name"])
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"suspend": False}})
    status = world.succeeded()
    assert status["restarts"]["total"] == status["restarts"]["free"]
    assert_one_curve(world, 150)
    assert all(len(seen) == 1 for seen in world.losses().values())


def test_a_job_deleted_in_mid_run_leaves_nothing(world: World) -> None:
    world.submit(world.training(steps=5000))
    world.wait_step(5)
    world.delete()  # waits for its pods and its Service to go
    assert world.pods() == []


def test_a_job_recreated_under_its_old_name(world: World) -> None:
    job = world.training(steps=40)
    job["spec"]["checkpoint"]["volume"]["hostPath"] += "/second"  # the first one's folder is its own
    folder = world.folder / "second" / "output"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent):
        path.chmod(0o777)
    world.submit(world.training(steps=5000))
    world.wait_step(5)
    world.kube.delete(JOB, "job", world.namespace)
    world.kube.wait(JOB, "job", world.namespace, lambda found: found is None, "deleted")
    world.submit(job)  # its predecessor's pods are still terminating
    status = world.succeeded()
    assert status["restarts"]["total"] == 0
