"""Jobs where pod security is restricted, with our image and with a user's, and with another user than ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.installation import Installation
from e2e.test_start import reason
from e2e.world import PLAIN, World

pytestmark = pytest.mark.exclusive

ENFORCED = {"pod-security.kubernetes.io/enforce": "restricted"}
ANYBODY = {"securityContext": {"runAsUser": 12345}}


def restrict(world: World) -> None:
    world.kube.patch("Namespace", world.namespace, "", {"metadata": {"labels": ENFORCED}})


def without_a_folder(world: World, **template: Any) -> Any:
    """A job of our own loop that mounts no hostPath, which the profile forbids."""
    job = world.training(steps=20, template=template, env={"TRAINMASTER_OUTPUT_DIR": "/tmp/output"})
    del job["spec"]["checkpoint"]
    return job


def greeting(world: World) -> Any:
    return world.script(["python3", "-c", "print('hello')"], image=PLAIN, template=ANYBODY)


@pytest.fixture(scope="module")
def restrictive(installation: Installation) -> Iterator[None]:
    """What an installation may choose for the pods of jobs: restricted images of users, and no user for ours."""
    nobody = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    try:
        installation.install(jobPods={"restrictUserImages": True, "securityContext": nobody})
        yield
    finally:
        installation.install()


def test_our_image_trains_where_pod_security_is_restricted(world: World) -> None:
    restrict(world)
    world.submit(without_a_folder(world))
    world.succeeded()


def test_an_image_of_a_user_is_refused_in_a_sentence_where_pod_security_is_restricted(world: World) -> None:
    restrict(world)
    world.submit(greeting(world))
    words = world.wait(lambda status: reason(status), "the refusal")
    assert "violates PodSecurity" in words


@pytest.mark.usefixtures("restrictive")
def test_an_image_of_a_user_runs_where_pod_security_is_restricted_once_the_installation_asks_for_it(
    world: World,
) -> None:
    restrict(world)
    world.submit(greeting(world))
    world.succeeded()
    for container in world.pods()[0]["spec"]["containers"]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.usefixtures("restrictive")
def test_our_images_run_as_any_user_of_group_0_as_openshift_has_it(world: World) -> None:
    """What OpenShift's admission adds is in the template here: a user of its range, and no group but 0."""
    chosen = {"runAsUser": 1000680000, "runAsGroup": 0, "fsGroup": 1000680000}
    world.submit(without_a_folder(world, securityContext=chosen))
    world.succeeded()
