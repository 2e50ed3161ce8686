"""Jobs that nothing disturbs: what they compute, and what people see of them."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from e2e.cluster.places import REPOSITORY
from e2e.kube import JOB
from e2e.world import PLAIN_TORCH, World

SCRIPT = REPOSITORY / "tests" / "e2e" / "scripts" / "ddp.py"


def test_the_demo_trains_as_on_one_machine(world: World, tmp_path: Path) -> None:
    """HSDP over four pods and over four local processes: the same losses, step by step."""
    text = world.folder / "text"
    text.mkdir()
    for module in (json, shutil, subprocess):
        shutil.copy(str(module.__file__), text / f"{module.__name__}.py")
    mesh = {"dpReplicate": 2, "dpShard": 2}
    job = world.training(
        replicas=4, steps=60, mesh=mesh, training={"data": {"source": "text", "path": "/checkpoints/text"}}
    )
    world.submit(job)

    local = json.loads(json.dumps(job))
    local["spec"]["training"]["data"]["path"] = str(text)
    del local["spec"]["checkpoint"]["volume"], local["spec"]["workers"]["template"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(local))
    command = [sys.executable, "-m", "trainmaster_operator.cli.main", "run", str(tmp_path / "job.yaml"), "--plain"]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}/operator:{REPOSITORY}/trainer"}
    subprocess.run([*command, "--out", str(tmp_path / "out")], env=environment, check=True, capture_output=True)

    world.succeeded()
    on_cluster = world.losses()
    on_one_machine = {}
    for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        on_one_machine[record["step"]] = float(record["loss"])
    assert sorted(on_cluster) == sorted(on_one_machine) == list(range(1, 61))
    for step, seen in on_cluster.items():
        (loss,) = seen
        assert math.isclose(float.fromhex(loss), on_one_machine[step], rel_tol=1e-5), step


def test_an_unmodified_script_in_an_image_without_trainmaster(world: World) -> None:
    """DDP with its own checkpoint file, killed once by itself: the agent comes with an init container."""
    shutil.copy(SCRIPT, world.folder / "ddp.py")
    command = ["torchrun", "--nproc-per-node=1", "/data/ddp.py", "--checkpoint", "/data/own.pt", "--steps", "30"]
    job = world.script(
        [*command, "--die", "kill", "--die-at", "12"],
        image=PLAIN_TORCH,
        container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        template={"volumes": [{"name": "data", "hostPath": {"path": str(world.folder)}}]},
    )
    world.submit(job)
    status = world.succeeded()
    assert status["restarts"]["inPlace"] == 1
    assert status["lastFailure"]["signal"] == "SIGKILL"
    assert (world.folder / "own.pt").exists()
    merged = world.trainmaster("logs", "job", "--all")
    for rank in (0, 1):
        assert f"[rank {rank}] resumed at step 10" in merged


def test_what_kubectl_and_the_command_line_tell(world: World) -> None:
    world.submit(world.training(steps=120))
    world.wait_step(40)
    pod = world.pod(0)
    world.signal(pod, world.rank_process(pod), 9)
    world.succeeded()
    header, row = world.kube.kubectl("get", "dtj", "-n", world.namespace).splitlines()
    assert header.split() == [
        "NAME",
        "STATE",
        "STEP",
        "LOSS",
        "ETA",
        "WORKERS",
        "RESTARTS",
        "GOODPUT",
        "UPDATED",
        "AGE",
    ]
    assert row.split()[:3] == ["job", "Succeeded", "120"]
    story = world.kube.kubectl("describe", "dtj", "job", "-n", world.namespace)
    for word in ("SIGKILL", "restart in place", "Succeeded"):
        assert word in story
    for reason in ("Recovering", "Succeeded"):
        world.kube.wait_event(reason, "job", world.namespace)
    assert world.trainmaster("status", "job").count("Succeeded")
    merged = world.trainmaster("logs", "job", "--all")
    assert "[rank 0] step 1 of 120: loss " in merged
    assert "[rank 0] step 120 of 120: loss " in merged
    assert world.kube.find(JOB, "job", world.namespace)
    world.trainmaster("delete", "job")
    assert world.kube.find(JOB, "job", world.namespace) is None
