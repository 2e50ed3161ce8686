"""A pod is lost with all that its memory held: what a peer kept of it is as good, if it is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.e2e.harness import Calm, Command, Outcome, command, run, small_demo_job, started
from trainmaster.checkpoint.files.memory_tier import RamFolder
from trainmaster_operator.cli.run import local_processes
from trainmaster_operator.local import process_tree

pytestmark = pytest.mark.processes

STEPS = 30
ALARM_S = 240  # no test asserts on a time: this only ends one that hangs


def job(folder: Path, ram: dict[str, object], every: int = STEPS, ranks: int = 4) -> Path:
    path = small_demo_job(folder, ranks, {"dpShard": ranks}, STEPS, checkpoint={"every": every, "keep": 3})
    document = yaml.safe_load(path.read_text())
    document["spec"]["checkpoint"]["ram"] = ram
    document["spec"]["recovery"] = {"hang": {"mode": "Off"}}
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_lost_pod_of_a_sharded_model_costs_one_step_at_most(calm: Calm, tmp_path: Path) -> None:
    sharded = job(tmp_path, {"every": 1}, ranks=3)
    undisturbed = calm(sharded)
    assert undisturbed.exit_code == 0, undisturbed.output
    faults = ["kill-pod:rank=2,step=9", "kill-pod:rank=0,step=17", "kill:rank=1,step=23"]
    # A step is saved once the copies of the one before are whole. Before each fault steps take longer than copies do.
    slow = [f"slow:rank={rank},step={step},seconds=1,steps=2" for rank in range(3) for step in (8, 16, 22)]
    stormy = run(sharded, tmp_path / "stormy", [*faults, *slow])
    assert stormy.exit_code == 0, stormy.output
    recoveries = stormy.status["recoveries"]
    assert [r["rung"] for r in recoveries] == ["pod", "pod", "inPlace"], stormy.output
    assert [r["lostSteps"] <= 1 for r in recoveries] == [True] * 3, recoveries
    assert [r["tier"] for r in recoveries] == ["peer", "peer", "ram"]
    assert stormy.losses() == undisturbed.losses()
    assert stormy.final()["digest"] == undisturbed.final()["digest"]


def test_without_peers_the_same_loss_goes_back_to_storage(tmp_path: Path) -> None:
    stormy = run(job(tmp_path, {"every": 1, "peers": 0}, every=5), tmp_path / "stormy", ["kill-pod:rank=2,step=9"])
    assert stormy.exit_code == 0, stormy.output
    assert [r["resumedStep"] for r in stormy.status["recoveries"]] == [5]


def test_a_corrupt_copy_is_seen_and_storage_is_used_instead(calm: Calm, tmp_path: Path) -> None:
    """A stopped rank holds the world in step 8, so the copy that is damaged is the one that is wanted: of step 6.

    Losses don't depend on what is saved, so the undisturbed run is the one of the test above."""
    undisturbed = calm(job(tmp_path, {"every": 1}, ranks=3))
    assert undisturbed.exit_code == 0, undisturbed.output
    out = tmp_path / "stormy"
    with watched(job(tmp_path, {"every": 6}, every=5, ranks=3), out, ["stop:rank=0,step=8"]) as (process, lines):
        for line in lines:
            if "stop, asked for" in line:
                break
        pods = memories(process)
        (copy,) = [f.path(6, 1, 2) for slot, f in pods.items() if slot != 2 and (6, 1, 2) in f.names()]
        with open(copy, "r+b") as file:
            file.seek(-100, os.SEEK_END)
            byte = file.read(1)
            file.seek(-100, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        local_processes.kill_pod(uid_of(process.pid, 2))
        output = "".join(lines)
        process.wait()
    stormy = Outcome(out, process.returncode, output)
    assert stormy.exit_code == 0, output
    recovered = [(r["rung"], r["resumedStep"], r["tier"]) for r in stormy.status["recoveries"]]
    assert recovered == [("pod", 5, "storage")], output
    told = "".join(path.read_text() for path in (out / "logs").glob("*.log"))
    assert "CheckpointDamaged: step-6.r1: the state of rank 2 in a peer's memory" in told
    assert stormy.losses() == undisturbed.losses()
    assert stormy.final()["digest"] == undisturbed.final()["digest"]


def test_copies_of_a_run_that_has_ended_are_not_waited_for() -> None:
    with subprocess.Popen(["true"], text=True) as process:
        process.wait()
    with pytest.raises(AssertionError, match="the run ended before"):
        memories(process)


@contextmanager
def watched(job: Path, out: Path, faults: list[str]) -> Iterator[tuple[Command, Iterator[str]]]:
    with started(command(job, out, faults)) as process:
        before = signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(ALARM_S)
        assert process.stdout is not None
        try:
            yield process, iter(process.stdout)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            if process.poll() is None:
                process.terminate()
                process.wait()


def agents(pid: int) -> dict[int, dict[str, str]]:
    """The variables of the agents below a process, by slot."""
    found = {}
    for process in process_tree.below([pid], process_tree.table()):
        try:
            raw = Path(f"/proc/{process.pid}/environ").read_text()
        except OSError:
            continue
        variables = dict(item.partition("=")[::2] for item in raw.split("\0") if item)
        if process.pid == process.session and "TRAINMASTER_SLOT" in variables:
            found[int(variables["TRAINMASTER_SLOT"])] = variables
    return found


def memories(process: Command) -> dict[int, RamFolder]:
    """The memory of each slot's pod, once every rank has a copy of step 6 in another one. A run that ends before fails
    the caller: `watched` ends one that hangs."""
    while True:
        assert process.poll() is None, "the run ended before every rank had a copy of step 6"
        pods = {slot: RamFolder(env["TRAINMASTER_RAM_DIR"], 1 << 30) for slot, env in agents(process.pid).items()}
        copied = {rank for slot, f in pods.items() for step, _, rank in f.names() if (step, slot != rank) == (6, True)}
        if copied == {0, 1, 2}:
            return pods
        time.sleep(0.05)


def uid_of(pid: int, slot: int) -> str:
    return agents(pid)[slot]["TRAINMASTER_POD_UID"]
