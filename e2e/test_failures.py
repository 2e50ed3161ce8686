"""What breaks while a job trains, and that its losses never show it."""

from __future__ import annotations

import re
import signal

import pytest

from e2e.kube import Object
from e2e.world import World
from tests.agent.other_torch import OTHER_TORCH, VERSION


def assert_one_curve(world: World, steps: int) -> None:
    """Every step has a loss, and a step that was run again had the same one."""
    losses = world.losses()
    assert sorted(losses) == list(range(1, steps + 1))
    assert {step: seen for step, seen in losses.items() if len(seen) > 1} == {}


def test_a_killed_rank_restarts_in_its_pod(world: World) -> None:
    name = world.submit(world.training(steps=150))
    world.wait_step(30)
    pod = world.pod(1)
    world.signal(pod, world.rank_process(pod), signal.SIGKILL)
    status = world.succeeded()
    assert status["restarts"]["inPlace"] == 1
    assert status["restarts"]["total"] == 1
    assert [p["metadata"]["name"] for p in world.pods(name)] == [world.pod(0), world.pod(1)]
    recovery = status["recoveries"][-1]
    assert recovery["cause"] == "Crash"
    assert recovery["rank"] == 1
    assert status["lastFailure"]["signal"] == "SIGKILL"
    assert_one_curve(world, 150)


def test_a_job_without_storage_says_that_it_keeps_nothing_and_begins_again_at_step_0(world: World) -> None:
    job = world.training(steps=150)
    del job["spec"]["checkpoint"]
    job["spec"]["workers"]["template"]["spec"]["containers"][0]["env"] = []  # nor has it an output folder
    name = world.submit(job)

    def unprotected(status: Object) -> Object | None:
        found = {c["type"]: c for c in status.get("conditions", [])}.get("Unprotected")
        return status if found is not None and found["status"] == "True" else None

    first = world.wait(unprotected, "condition Unprotected")
    assert not (first.get("progress") or {}).get("step"), "it is told before there is anything to lose"
    world.wait_step(30)
    world.signal(world.pod(1), world.rank_process(world.pod(1)), signal.SIGKILL)
    recovered = world.kube.wait_event("Recovered", name, world.namespace)
    assert re.search(r"began again at step 0, [1-9]\d* steps lost", recovered["message"])
    world.kube.delete("Pod", world.pod(1), world.namespace)
    status = world.succeeded()
    assert [r["resumedStep"] for r in status["recoveries"]] == [0, 0]
    assert not status.get("checkpoint")
    told = " ".join(event["message"] for event in world.events())
    assert "nothing was saved: the job has no spec.checkpoint" in told
    assert re.findall(r"save and stop|rank saved|step \d+ is saved", told) == []


def test_a_deleted_pod_is_replaced(world: World) -> None:
    world.submit(world.training(steps=150))
    world.wait_step(30)
    world.kube.delete("Pod", world.pod(1), world.namespace)
    status = world.succeeded()
    assert status["restarts"]["inPlace"] == 0
    assert {p["metadata"]["name"] for p in world.pods()} == {world.pod(0), world.pod(1, 1)}
    assert_one_curve(world, 150)


def test_an_evicted_pod_costs_no_step_and_no_budget(world: World) -> None:
    world.submit(world.training(steps=150, recovery={"budget": {"inPlace": 0, "pod": 0, "full": 0}}))
    world.wait_step(30)
    world.kube.evict(world.pod(0), world.namespace)
    status = world.succeeded()
    assert status["restarts"]["free"] == 1
    assert status["recoveries"][-1]["lostSteps"] == 0
    assert_one_curve(world, 150)


@pytest.mark.usefixtures("machine")
def test_every_process_of_a_container_killed_at_once(world: World) -> None:
    """What an out-of-memory kill does under cgroup v2: the agent has no last words."""
    world.submit(world.training(steps=150))
    world.wait_step(30)
    victim = world.pod(1)
    # Within a pid namespace everything but pid 1 dies by -1; pid 1 dies from outside, by its container's end.
    world.kill_container(victim)
    status = world.succeeded()
    assert status["restarts"]["pod"] == 1
    assert status["recoveries"][-1]["pod"] == victim
    assert_one_curve(world, 150)


def test_a_real_out_of_memory_kill_is_called_that(world: World) -> None:
    script = (
        "import torch.distributed as dist, time\n"
        "dist.init_process_group('gloo')\n"
        "hog = []\n"
        "while dist.get_rank() == 1:\n"
        "    hog.append(b'x' * 10_000_000)\n"
        "time.sleep(1000)\n"
    )
    job = world.script(
        ["python3", "-c", script],
        image="docker.io/trainmaster/plain-torch:e2e",
        container={"resources": {"requests": {"memory": "64Mi"}, "limits": {"memory": "900Mi"}}},
        recovery={"budget": {"inPlace": 0, "pod": 0, "full": 0}},
    )
    world.submit(job)
    status = world.wait_phase("Failed")
    assert status["lastFailure"]["cause"] == "OutOfMemory"
    assert status["lastFailure"]["rank"] in (1, None)


def test_pods_with_different_versions_of_torch_enter_no_collective(world: World) -> None:
    script = (
        "import os, torch, torch.distributed as dist\n"
        "if os.environ['RANK'] == '1': torch.__version__ = '2.0.1'\n"
        "dist.init_process_group('gloo')\n"
        "print('enters its first collective', flush=True)\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    world.submit(world.script(["python3", "-c", script], image="docker.io/trainmaster/plain-torch:e2e"))
    status = world.wait_phase("Failed")
    failure = status["lastFailure"]
    assert (failure["cause"], status["restarts"]["total"]) == ("ConfigError", 0)
    assert f"2.0.1 in {world.pod(1)}" in failure["message"]
    assert f"in {world.pod(0)}" in failure["message"]
    assert "enters its first collective" not in world.logs()


def test_pods_of_our_trainer_with_different_versions_of_torch_train_no_step(world: World) -> None:
    (world.folder / "sitecustomize.py").write_text(OTHER_TORCH)
    world.submit(world.training(env={"PYTHONPATH": "/checkpoints"}))
    status = world.wait_phase("Failed")
    failure = status["lastFailure"]
    assert (failure["cause"], status["restarts"]["total"]) == ("ConfigError", 0)
    assert f"{VERSION} in {world.pod(1)}" in failure["message"]
    assert f"in {world.pod(0)}" in failure["message"]
    assert not (status.get("progress") or {}).get("step")
