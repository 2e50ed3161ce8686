"""A run keeps what it began with: edits reach the next run. Upgrades are in test_chart.py."""

from __future__ import annotations

from e2e.kube import JOB, Object
from e2e.world import TRAINER, World

STEPS = 150
SLOW, FAST = {"lr": 0.001}, {"lr": 0.05}


def submit_unedited(world: World) -> None:
    """The same job, which nobody touches, with a folder of its own."""
    job = world.training(name="unedited", steps=STEPS, training={"optimizer": SLOW})
    world.give_folder(job, "unedited")
    world.submit(job)


def edit(world: World, training: Object) -> None:
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"training": training}})


def waits(status: Object) -> str:
    """The fields that wait, as the condition tells; "" when none do."""
    found = [c for c in status.get("conditions") or [] if c["type"] == "RevisionPending" and c["status"] == "True"]
    return str(found[0]["message"]) if found else ""


def test_an_edit_in_mid_run_changes_no_loss_of_the_run_and_a_resume_takes_it(world: World) -> None:
    world.submit(world.training(steps=STEPS, training={"optimizer": SLOW}))
    submit_unedited(world)
    first = world.wait_step(10)["revision"]
    edit(world, {"optimizer": FAST})
    assert "spec.training.optimizer.lr changed" in world.wait(waits, "the edit waits")

    world.kube.delete("Pod", world.pod(1), world.namespace)
    replaced = world.wait(lambda status: status.get("recoveries") and status["progress"]["step"], "a new pod")
    assert world.wait_step(replaced + 20)["revision"] == first
    assert {p["metadata"]["name"] for p in world.pods()} == {world.pod(0), world.pod(1, 1)}
    assert waits(world.status())

    world.kube.patch(JOB, "job", world.namespace, {"spec": {"suspend": True}})
    stopped_at = world.wait_phase("Suspended")["checkpoint"]["step"]
    assert stopped_at >= replaced + 20
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"suspend": False}})
    status = world.succeeded()
    assert status["revision"] != first
    assert not waits(status)

    world.succeeded("unedited")
    losses, expected = world.losses(), world.losses("unedited")
    assert len(losses) == len(expected) == STEPS
    assert all(losses[step] == expected[step] for step in range(1, stopped_at + 2))  # the next step's update differs
    assert all(losses[step] != expected[step] for step in range(stopped_at + 2, STEPS + 1))


def test_a_restart_that_a_person_asks_for_takes_the_edit(world: World) -> None:
    world.submit(world.training(steps=100_000, training={"optimizer": SLOW}))
    first = world.wait_step(30)["revision"]
    edit(world, {"optimizer": FAST})
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"restart": 1}})  # as `trainmaster restart` does
    saved = world.wait(lambda status: status["revision"] != first and status["checkpoint"]["step"], "the next run")
    status = world.wait_step(saved + 20)
    assert status["restarts"]["total"] == 0
    assert not waits(status)
    world.delete()
    losses = world.losses()
    assert len(losses) >= saved + 20
    assert all(len(seen) == 1 for seen in losses.values())


def test_a_wrong_image_is_corrected_by_an_edit(world: World) -> None:
    job = world.script(["true"], image="docker.io/trainmaster/missing:e2e", container={"imagePullPolicy": "Never"})
    world.submit(job)

    def told(status: Object) -> bool:
        return any(c["type"] == "Scheduled" and c["reason"] == "ImageError" for c in status.get("conditions") or [])

    world.wait(told, "the image is missing")
    first = before = world.status()["revision"]
    template = job["spec"]["workers"]["template"]
    for another in ("docker.io/trainmaster/missing:a", "docker.io/trainmaster/missing:b", TRAINER):
        template["spec"]["containers"][0]["image"] = another
        world.kube.patch(JOB, "job", world.namespace, {"spec": {"workers": {"template": template}}})
        before = world.wait(lambda status, old=before: status["revision"] != old and status["revision"], "the edit")
    status = world.succeeded()
    assert world.image(0, 3) == TRAINER
    assert len(status["revisions"]) == 3
    world.gone("ControllerRevision", first)
