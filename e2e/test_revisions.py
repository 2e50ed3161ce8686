"""A run keeps what it began with: edits and upgrades reach the next run."""

from __future__ import annotations

import pytest

from e2e.installation import VALUES
from e2e.kube import JOB, Object
from e2e.world import TRAINER, World

STEPS = 150
SLOW, FAST = {"lr": 0.001}, {"lr": 0.05}


def unedited(world: World) -> dict[int, set[str]]:
    """The losses of the same job that nobody touched."""
    folder = world.folder / "unedited" / "output"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent):
        path.chmod(0o777)
    job = world.training(name="unedited", steps=STEPS, training={"optimizer": SLOW})
    job["spec"]["checkpoint"]["volume"]["hostPath"] += "/unedited"
    world.submit(job)
    world.succeeded("unedited")
    return world.losses("unedited")


def edit(world: World, training: Object) -> None:
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"training": training}})


def waits(status: Object) -> str:
    """The fields that wait, as the condition tells; "" when none do."""
    found = [c for c in status.get("conditions") or [] if c["type"] == "RevisionPending" and c["status"] == "True"]
    return str(found[0]["message"]) if found else ""


def image(world: World, slot: int, incarnation: int) -> str:
    (container,) = world.kube.get("Pod", world.pod(slot, incarnation), world.namespace)["spec"]["containers"]
    return str(container["image"])


def test_an_edit_in_mid_run_changes_no_loss_of_the_run(world: World) -> None:
    expected = unedited(world)
    world.submit(world.training(steps=STEPS, training={"optimizer": SLOW}))
    world.wait_step(30)
    edit(world, {"optimizer": FAST})
    assert "spec.training.optimizer.lr changed" in world.wait(waits, "the edit waits")
    world.kube.delete("Pod", world.pod(1), world.namespace)
    world.succeeded()
    assert {p["metadata"]["name"] for p in world.pods()} == {world.pod(0), world.pod(1, 1)}
    assert world.losses() == expected


def test_a_resume_takes_the_edit(world: World) -> None:
    expected = unedited(world)
    world.submit(world.training(steps=STEPS, training={"optimizer": SLOW}))
    first = world.wait_step(30)["revision"]
    edit(world, {"optimizer": FAST})
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"suspend": True}})
    stopped_at = world.wait_phase("Suspended")["checkpoint"]["step"]
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"suspend": False}})
    status = world.succeeded()
    assert status["revision"] != first
    assert not waits(status)
    losses = world.losses()
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
    assert image(world, 0, 3) == TRAINER
    assert len(status["revisions"]) == 3
    world.gone("ControllerRevision", first)


@pytest.mark.exclusive
def test_a_pod_that_is_replaced_after_an_upgrade_has_the_image_of_its_run(world: World) -> None:
    world.submit(world.training(steps=400))
    world.wait_step(30)
    before = image(world, 1, 0)
    try:
        world.installation.install(trainerImage={**VALUES["trainerImage"], "tag": "next"})
        world.kube.delete("Pod", world.pod(1), world.namespace)
        status = world.succeeded()
    finally:
        world.installation.install()
    assert image(world, 1, 1) == before
    assert not waits(status)
