"""What an API server says of options that nothing would obey, and of numbers that can't be."""

from __future__ import annotations

import re
from typing import Any

import pytest

from e2e.kube import JOB, Refused
from e2e.world import World
from tests.api.jobs import job
from tests.api.unused_options import ON_CLUSTERS, REFUSED, TAKEN, optimizer


def create(world: World, **changes: Any) -> None:
    """Create a job that never starts."""
    world.kube.create(job(**{"metadata__namespace": world.namespace, "spec__suspend": True, **changes}))


def answer(world: World, **changes: Any) -> int:
    """The API server's code."""
    try:
        create(world, **changes)
    except Refused as refused:
        return refused.code
    return 201


def test_the_api_server_refuses_options_that_nothing_would_obey(world: World) -> None:
    asked = [*REFUSED, *ON_CLUSTERS, (optimizer(betas=[5, -3]), "out of bounds")]
    answers = {
        str(changes): answer(world, metadata__name=f"unused-{number}", **changes)
        for number, (changes, _) in enumerate(asked)
    }
    assert answers == {str(changes): 422 for changes, _ in asked}


@pytest.mark.parametrize("changes", [{}, optimizer(name="sgd"), optimizer(schedule="Constant")], ids=str)
def test_the_api_server_takes_a_job_with_the_defaults_that_it_fills_in(world: World, changes: dict[str, Any]) -> None:
    create(world, **changes)


def test_the_api_server_takes_the_same_options_where_something_obeys_them(world: World) -> None:
    for number, changes in enumerate(TAKEN):
        create(world, metadata__name=f"used-{number}", **changes)


def test_what_all_pods_share_can_not_be_edited_while_a_run_is_on(world: World) -> None:
    world.submit(world.training(steps=100_000))
    world.wait_phase("Running")
    training = world.job()["spec"]["training"]
    suspended = "can be changed only while the job is suspended"
    words = {
        "framework": "framework can't be changed: create another job",
        "managedBy": "managedBy can't be changed: create another job",
        "workers": f"workers.ranksPerPod {suspended}",
        "training": f"training.parallelism and training.batch {suspended}",
    }
    always = {"framework": "PyTorch", "managedBy": "example.com/other"}
    while_it_runs = {
        "workers": {"ranksPerPod": 2},
        "training": {"batch": {"global": 2 * training["batch"]["global"]}},
    }
    for name, value in (always | while_it_runs).items():
        with pytest.raises(Refused, match=re.escape(words[name])) as refused:
            world.kube.patch(JOB, "job", world.namespace, {"spec": {name: value}})
        assert refused.value.code == 422
    assert world.status()["phase"] == "Running"
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"suspend": True}})
    world.wait_phase("Suspended")
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"training": while_it_runs["training"]}})
    for name, value in always.items():
        with pytest.raises(Refused, match=re.escape(words[name])):
            world.kube.patch(JOB, "job", world.namespace, {"spec": {name: value}})
