"""Rows of docs/scripts.md, as whole runs: what a launcher would start is what ranks run, once for each of them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import harness
from tests.e2e.harness import run, script_job

pytestmark = pytest.mark.processes

SCRIPTS = Path(__file__).parent / "scripts"
WORLD = f"""
import sys
sys.path.append({str(SCRIPTS)!r})
import torch, uncompiled
import torch.distributed as dist
dist.init_process_group("gloo")
sum = torch.ones(1)
dist.all_reduce(sum)
print("ranks in this world:", int(sum), flush=True)
dist.destroy_process_group()
"""
TOLD = """
import os, sys
names = ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU", "RANK")
print("told", sys.executable, sys.argv[1:], *[os.environ.get(name) for name in names], flush=True)
"""


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def logs(out: Path) -> str:
    return "".join(path.read_text() for path in sorted((out / "logs").glob("script-worker-*")))


def test_torchrun_in_a_shell_script_starts_one_world_and_not_one_in_each_rank(tmp_path: Path) -> None:
    script = written(tmp_path / "train.py", WORLD)
    shell = written(tmp_path / "run.sh", f"torchrun --standalone --nproc-per-node=1 {script}\n")
    outcome = run(script_job(tmp_path, ["bash", shell]), tmp_path / "out")
    assert outcome.exit_code == 0, outcome.output
    assert logs(tmp_path / "out").count("ranks in this world: 2") == 2


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerates_options_reach_the_script(tmp_path: Path) -> None:
    script = written(tmp_path / "train.py", TOLD)
    command = ["accelerate", "launch", "--cpu", "--mixed_precision=bf16", "--main_process_port=1", script, "--x"]
    outcome = run(script_job(tmp_path, command, replicas=1), tmp_path / "out")
    assert outcome.exit_code == 0, outcome.output
    assert "['--x'] bf16 True 0" in logs(tmp_path / "out")
    # The terminal asks for notes every second; a run that is over before has them in its log.
    assert "accelerate launch --main_process_port has no effect: Trainmaster opens the rendezvous" in logs(
        tmp_path / "out"
    )


def test_what_only_the_pod_can_see_fails_the_job_at_once(tmp_path: Path) -> None:
    script = written(tmp_path / "train.py", TOLD)
    shell = written(tmp_path / "run.sh", f"torchrun --nproc-per-node=4 {script}\n")
    outcome = run(script_job(tmp_path, ["bash", shell]), tmp_path / "out")
    assert outcome.exit_code == 1, outcome.output
    assert outcome.status["lastFailure"]["cause"] == "ConfigError"
    assert "would start 4 processes in each pod, but workers.ranksPerPod is 1" in outcome.output
    assert (outcome.status.get("restarts") or {}).get("total", 0) == 0


def test_scripts_run_by_the_python_of_path_where_it_has_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (venv / "lib" / version / "site-packages" / "torch.py").write_text("")
    monkeypatch.setenv("PATH", f"{venv}/bin{os.pathsep}{os.environ['PATH']}")
    command = ["python", written(tmp_path / "train.py", TOLD)]
    outcome = run(script_job(tmp_path, command, replicas=1), tmp_path / "out")
    assert outcome.exit_code == 0, outcome.output
    assert f"told {venv}/bin/python []" in logs(tmp_path / "out")
    assert f"scripts run by {venv}/bin/python (Python " in outcome.output


def test_a_run_that_forks_no_rank_imports_nothing_in_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "zygote", None)
    script = written(tmp_path / "train.py", "import os; print(open(f'/proc/{os.getppid()}/cmdline').read())")
    job = script_job(tmp_path, ["python", script], replicas=1, recovery={"zygote": False})
    outcome = run(job, tmp_path / "out")
    assert outcome.exit_code == 0, outcome.output
    assert "imports in advance" not in outcome.output
    assert "--bare" in logs(tmp_path / "out")
