"""The operator and the API server go away; the training doesn't."""

from __future__ import annotations

import signal

import pytest

from e2e.installation import NAMESPACE
from e2e.kube import JOB, Object
from e2e.machine import Machine
from e2e.test_failures import assert_one_curve
from e2e.world import World


@pytest.mark.exclusive
def test_the_operator_dies_in_mid_recovery(world: World) -> None:
    world.submit(world.training(steps=150))
    world.wait_step(30)
    pod = world.pod(1)
    world.signal(pod, world.rank_process(pod), signal.SIGKILL)
    world.kube.delete("Pod", world.installation.leader(), NAMESPACE, grace_s=0)
    status = world.succeeded()
    assert status["restarts"]["total"] == 1
    assert_one_curve(world, 150)


@pytest.mark.exclusive
def test_a_rank_dies_while_no_operator_runs(world: World) -> None:
    world.submit(world.training(steps=400))
    world.wait_step(30)
    world.installation.scale(0)
    try:
        pod = world.pod(1)
        world.signal(pod, world.rank_process(pod), signal.SIGKILL)
    finally:
        world.installation.scale(2)
    status = world.succeeded()
    assert status["restarts"]["total"] == 1
    assert_one_curve(world, 400)


@pytest.mark.exclusive
@pytest.mark.parametrize("end", ["terminated", "killed"])
def test_the_standby_takes_over(world: World, request: pytest.FixtureRequest, end: str) -> None:
    if end == "killed":
        request.getfixturevalue("machine")  # or the test is skipped
    world.submit(world.training(steps=400))
    epoch = world.wait_step(30)["leaderEpoch"]
    leader = world.installation.leader()
    if end == "killed":
        world.kill_container(leader, NAMESPACE)  # it comes back, or the other one takes the lease
    else:
        world.kube.delete("Pod", leader, NAMESPACE)
        assert world.installation.leader(other_than=leader) != leader
    pod = world.pod(1)
    world.signal(pod, world.rank_process(pod), signal.SIGKILL)
    status = world.succeeded()
    assert status["leaderEpoch"] > epoch or end == "killed"
    assert {rung: count for rung, count in status["restarts"].items() if count} == {"inPlace": 1, "total": 1}
    assert_one_curve(world, 400)
    world.installation.wait_ready()


@pytest.mark.exclusive
def test_the_api_server_restarts_in_mid_run(world: World, machine: Machine) -> None:
    world.submit(world.training(steps=400))
    world.wait_step(30)
    machine.restart_api_server()
    pod = world.pod(1)
    world.signal(pod, world.rank_process(pod), signal.SIGKILL)
    status = world.succeeded()
    assert status["restarts"]["total"] == 1
    assert_one_curve(world, 400)


def test_one_bad_job_beside_a_hundred_good_ones(world: World) -> None:
    """A job that passes the schema, and whose pods the API server calls invalid, harms nobody."""
    idle = [world.training(name=f"idle-{number}", suspend=True) for number in range(100)]
    bad = world.script(["true"], name="bad", container={"ports": [{"containerPort": 99_999}]})
    world.kube.apply(*idle[:50], bad, *idle[50:])
    world.submit(world.training(steps=40))

    def told(status: Object) -> bool:
        return "containerPort" in "".join(condition["message"] for condition in status.get("conditions", []))

    world.wait(told, "the bad job's conditions hold the API server's words", "bad")
    world.succeeded()
    for job in (*idle[:2], *idle[-2:]):
        world.wait_phase("Suspended", name=job["metadata"]["name"])


def test_what_a_newer_operator_wrote_into_a_status_survives_what_this_one_writes(world: World) -> None:
    world.submit(world.training(steps=100_000))
    world.wait_phase("Running")
    world.kube.patch_status(JOB, "job", world.namespace, {"status": {"newer": {"a": 1}, "internal": {"newer": "x"}}})
    world.kube.patch(JOB, "job", world.namespace, {"spec": {"suspend": True}})
    world.wait_phase("Suspended")
    status = world.job()["status"]
    assert (status["newer"], status["internal"]["newer"]) == ({"a": 1}, "x")
