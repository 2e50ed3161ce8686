"""A job's life as its owner directs it."""

from __future__ import annotations

from e2e.kube import JOB, Object
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
    assert status["restarts"]["total"] == 0
    assert_one_curve(world, 150)
    assert all(len(seen) == 1 for seen in world.losses().values())


def test_what_happens_again_is_one_event_with_a_count(world: World) -> None:
    world.submit(world.training(steps=100_000))
    world.wait_phase("Running")
    for _ in range(2):
        world.kube.patch(JOB, "job", world.namespace, {"spec": {"suspend": True}})
        world.wait_phase("Suspended")
        world.kube.patch(JOB, "job", world.namespace, {"spec": {"suspend": False}})
        world.wait_phase("Running")
    world.kube.wait_event("Resumed", "job", world.namespace)
    (event,) = [event for event in world.events() if event["reason"] == "Resumed"]

    def counted(event: Object | None) -> bool:
        return event is not None and event["count"] == 2

    world.kube.wait("Event", event["metadata"]["name"], world.namespace, counted, "counted twice", 30)


def test_a_job_deleted_in_mid_run_leaves_nothing(world: World) -> None:
    world.submit(world.training(steps=5000))
    world.wait_step(5)
    world.delete()  # waits for its pods and its Service to go
    assert world.pods() == []


def test_a_finished_job_is_deleted_when_its_time_is_over(world: World) -> None:
    job = world.training(steps=5)
    job["spec"]["ttlSecondsAfterFinished"] = 1
    world.submit(job)
    world.gone(JOB, "job", 120)
    for slot in range(2):
        world.gone("Pod", world.pod(slot))


def test_a_job_recreated_under_its_old_name(world: World) -> None:
    job = world.training(steps=40)
    world.give_folder(job, "second")  # the first one's folder is its own
    world.submit(world.training(steps=5000))
    world.wait_step(5)
    world.kube.delete(JOB, "job", world.namespace)
    world.kube.wait(JOB, "job", world.namespace, lambda found: found is None, "deleted")
    world.submit(job)  # its predecessor's pods are still terminating
    status = world.succeeded()
    assert status["restarts"]["total"] == 0


def test_new_resources_reach_pods_that_run(world: World) -> None:
    job = world.training(steps=400, every=50)
    world.submit(job)
    world.wait_step(10)
    before = world.uids()
    template = job["spec"]["workers"]["template"]
    (container,) = template["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "300m", "memory": "64Mi"}, "limits": {"cpu": "900m"}}
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"workers": {"template": template}}})

    def carried_out(pod: Object | None) -> bool:
        """As the kubelet says: not what was asked for, what the container has."""
        (status,) = ((pod or {}).get("status") or {}).get("containerStatuses") or [{}]
        return ((status.get("resources") or {}).get("limits") or {}).get("cpu") == "900m"

    for pod in world.pods():
        world.kube.wait("Pod", pod["metadata"]["name"], world.namespace, carried_out, "resized", 60)
    assert world.uids() == before
    status = world.succeeded(limit_s=240)
    assert status["restarts"]["total"] == 0
    world.kube.wait_event("Resized", "job", world.namespace)
    (told,) = [event["message"] for event in world.events() if event["reason"] == "Resized"]
    assert told.startswith("2 pods were resized in place"), told
