"""Runs on a machine with devices: none is shared by two ranks or two runs, and too few are told in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.harness import command, run, script_job, small_demo_job, started
from tests.faked_cuda import FakedCuda

TUTORIAL = Path(__file__).parent / "scripts" / "tutorial.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"
CHOOSES = """
import runpy, sys, torch
choose = torch.cuda.set_device
def set_device(device):
    choose(device)
    print("this rank computes on", torch.cuda.get_device_properties(device).uuid, flush=True)
torch.cuda.set_device = set_device
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs another script, and prints which device it chooses."""
SEEN = (
    "import os\n"
    "names = ('LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'GROUP_WORLD_SIZE')\n"
    "print('seen', *(os.environ[name] for name in names), os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)\n"
)
"""A script that imports nothing which takes time."""


def seen(out: Path) -> list[str]:
    """What ranks printed with SEEN, in the order of ranks."""
    text = "".join(path.read_text() for path in (out / "logs").glob("*-worker-*.log"))
    return [line for _, line in sorted(re.findall(r"\[rank (\d+)\] seen (.*)", text))]


def chosen(out: Path) -> dict[int, list[str]]:
    """Which device each rank printed that it computes on, in each round."""
    text = "".join(path.read_text() for path in sorted((out / "logs").glob("*-worker-*.log")))
    found: dict[int, list[str]] = {}
    for rank, device in re.findall(r"\[rank (\d+)\] this rank computes on (.*)", text):
        found.setdefault(int(rank), []).append(device)
    return found


def job(folder: Path, name: str = "script", replicas: int = 2, ranks: int = 1, **container: Any) -> Path:
    """A job of pods that print what SEEN prints."""
    folder.mkdir(exist_ok=True)
    path = script_job(folder, ["python", "-c", SEEN], name=name, replicas=replicas)
    document = yaml.safe_load(path.read_text())
    workers = document["spec"]["workers"]
    workers["ranksPerPod"] = ranks
    workers["template"]["spec"]["containers"][0] |= container
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.processes
def test_local_ranks_are_numbered_over_all_pods_unless_pods_are_to_be_nodes(tmp_path: Path) -> None:
    path = job(tmp_path, ranks=2)
    assert run(path, tmp_path / "one").exit_code == 0
    assert [line.split()[:4] for line in seen(tmp_path / "one")] == [[str(rank), "4", "0", "1"] for rank in range(4)]
    assert run(path, tmp_path / "nodes", options=["--pods-as-nodes"]).exit_code == 0
    numbers = [[str(rank % 2), "2", str(rank // 2), "2"] for rank in range(4)]
    assert [line.split()[:4] for line in seen(tmp_path / "nodes")] == numbers


@pytest.mark.processes
def test_the_tutorials_script_has_a_device_for_each_rank_and_writes_one_snapshot(
    tmp_path: Path, faked_cuda: FakedCuda
) -> None:
    path = script_job(tmp_path, ["python", str(TUTORIAL), str(tmp_path / "snapshots")])
    outcome = run(path, tmp_path / "out", variables=faked_cuda(2))
    logs = "".join(log.read_text() for log in (tmp_path / "out" / "logs").glob("*-worker-*.log"))
    assert outcome.exit_code == 0, outcome.output + logs
    assert sorted(re.findall(r"computed on (.*)", logs)) == ["GPU-faked-0", "GPU-faked-1"]
    assert "CUDA devices 0, 1" in outcome.output
    assert (tmp_path / "snapshots" / "snapshot.pt").is_file()


@pytest.mark.processes
def test_the_readmes_script_has_the_same_device_for_each_rank_after_a_restart(
    tmp_path: Path, faked_cuda: FakedCuda
) -> None:
    wrapper = tmp_path / "chooses.py"
    wrapper.write_text(CHOOSES)
    path = script_job(tmp_path, ["python", str(wrapper), str(EXAMPLE)])
    outcome = run(path, tmp_path / "out", ["kill:rank=1,step=50"], variables=faked_cuda(2))
    assert outcome.exit_code == 0, outcome.output
    assert "step 180 after 1 restarts: loss " in outcome.output
    assert chosen(tmp_path / "out") == {rank: [f"GPU-faked-{rank}"] * 2 for rank in range(2)}


@pytest.mark.processes
def test_the_demos_ranks_have_a_device_each_and_the_same_one_after_a_restart(
    tmp_path: Path, faked_cuda: FakedCuda
) -> None:
    path = small_demo_job(tmp_path, 4, {"dpReplicate": 2, "dpShard": 2}, steps=16)
    document = yaml.safe_load(path.read_text())
    del document["spec"]["training"]["device"]  # as in the demo's job, which leaves it to the default
    path.write_text(yaml.safe_dump(document))
    outcome = run(path, tmp_path / "out", ["kill:rank=2,step=9"], variables=faked_cuda(4))
    assert outcome.exit_code == 0, outcome.output
    assert "CUDA devices 0, 1, 2, 3" in outcome.output
    assert chosen(tmp_path / "out") == {rank: [f"GPU-faked-{rank}"] * 2 for rank in range(4)}


@pytest.mark.processes
def test_four_ranks_with_one_device_train_on_the_cpu_and_the_run_says_so_once(
    tmp_path: Path, faked_cuda: FakedCuda
) -> None:
    path = small_demo_job(tmp_path, 4, {}, steps=16, device="Auto")
    outcome = run(path, tmp_path / "out", variables=faked_cuda(1))
    assert outcome.exit_code == 0, outcome.output
    words = "there is 1 CUDA device here for 4 ranks, so all ranks compute on the CPU"
    assert outcome.output.count(words) == 1
    assert words in next((tmp_path / "out" / "logs").glob("*-worker-0-*.log")).read_text()


@pytest.mark.processes
def test_two_runs_at_once_do_not_share_devices(tmp_path: Path, faked_cuda: FakedCuda) -> None:
    machine = faked_cuda(3)
    waits = SEEN + "import signal\nsignal.pause()\n"
    first = job(tmp_path / "first", replicas=1, command=["python", "-c", waits])
    with started(command(first, tmp_path / "first" / "out"), machine) as process:
        assert process.stdout is not None
        assert any("seen 0 1 0 1 0" in line for line in process.stdout), "its rank has device 0"
        second = run(job(tmp_path / "second"), tmp_path / "second" / "out", variables=machine)
        third = run(job(tmp_path / "third", replicas=3), tmp_path / "third" / "out", variables=machine)
    assert "CUDA devices 1, 2; another run holds device 0" in second.output
    assert seen(tmp_path / "second" / "out") == ["0 2 0 1 1,2", "1 2 0 1 1,2"]
    assert "other runs hold 1 of the 3 CUDA devices here, which leaves 2 for 3 ranks" in third.output
    assert seen(tmp_path / "third" / "out") == [f"{rank} 3 0 1 " for rank in range(3)]


@pytest.mark.processes
def test_pods_see_the_devices_that_they_ask_for_numbered_from_0(tmp_path: Path, faked_cuda: FakedCuda) -> None:
    path = job(tmp_path, resources={"limits": {"nvidia.com/gpu": 2}})
    outcome = run(path, tmp_path / "out", variables=faked_cuda(8, visible="7,5,3,1"))
    assert outcome.exit_code == 0, outcome.output
    assert sorted(line.split()[-1] for line in seen(tmp_path / "out")) == ["3,1", "7,5"]
    assert {tuple(line.split()[:2]) for line in seen(tmp_path / "out")} == {("0", "1")}
