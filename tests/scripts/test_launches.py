"""Other people's scripts, launched as other people launch them: a run for each way."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.e2e.harness import LIMIT_S, Outcome, run, script_job

pytestmark = pytest.mark.processes

PROGRAMS = Path(__file__).parent / "programs"
UNCOMPILED = Path(__file__).parents[1] / "e2e" / "scripts" / "uncompiled.py"

LAUNCHES = {
    "a script": ["python", "tells.py", "-f", "x"],
    "a module": ["python", "-u", "-m", "package", "-f", "x"],
    "a folder": ["torchrun", "--nproc-per-node=1", "package", "-f", "x"],
    "code": ["python", "-c", "import os, runpy; runpy.run_path(os.path.abspath('tells.py'))", "-f", "x"],
    "torchrun": ["torchrun", "--standalone", "--nproc_per_node", "1", "tells.py", "-f", "x"],
    "a launcher's module": ["python", "-m", "torch.distributed.run", "-m", "package", "-f", "x"],
    "a shell's line": ["sh", "-c", "exec torchrun tells.py -f 'x'"],
    "options of Python": ["nice", "-n", "1", "python", "-O", "tells.py", "-f", "x"],
    "a shell script": ["bash", "run.sh", "-f", "x"],
    "a shell script that asks for a module": ["bash", "probing.sh", "-f", "x"],
    "a program": ["./tells.py", "-f", "x"],
    "another interpreter": ["ANOTHER", "tells.py", "-f", "x"],
}


KILLS = {
    "ddp_snapshot.py": ("kill:rank=1,step=5", 3),
    "trainer_like.py": ("kill:rank=1,step=5", 4),
    "calls.py": ("kill:rank=0,step=5", 4),
    "accelerated.py": ("kill:rank=1,step=5", 3),
    "digits.py": ("kill:rank=1,step=5", 0),
}
"""A fault for each program of two ranks and twelve steps, and the step at which it goes on then."""

LINES = {
    "torchrun in a shell script": ["bash", "torchrun.sh"],
    "a wrapper in Python": ["bash", "wrapped.sh"],
    "accelerate": ["accelerate", "launch", "--cpu", "--num_processes=2"],
    "torch.distributed.launch": ["python", "-m", "torch.distributed.launch", "--nproc-per-node=1"],
    "torchrun": ["torchrun", "--nproc-per-node=1"],
    "python": ["python"],
}
"""What stands in front of a program."""


def _copy_programs(folder: Path) -> None:
    shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True)
    shutil.copy(UNCOMPILED, folder)


def run_program(folder: Path, command: list[str], faults: tuple[str, ...] = ()) -> tuple[Outcome, str]:
    """(the outcome of a job of two ranks in a folder with the programs, what all ranks printed)."""
    _copy_programs(folder)
    (folder / "tells.py").chmod(0o755)
    outcome = run(script_job(folder, ["env", "FLAVOUR=vanilla", *command]), folder / "out", faults)
    assert outcome.exit_code == 0, outcome.output
    return outcome, "".join(path.read_text() for path in sorted((folder / "out" / "logs").glob("script-worker-*")))


@pytest.mark.parametrize("way", LAUNCHES)
def test_each_rank_runs_the_script_once_with_its_own_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    another = tmp_path / "bin" / "python"
    another.parent.mkdir()
    another.symlink_to(sys.executable)
    command = [str(another) if word == "ANOTHER" else word for word in LAUNCHES[way]]
    _, log = run_program(tmp_path, command)
    assert sorted(re.findall(r"told (.*)", log)) == ["0 0 2 vanilla x True", "1 1 2 vanilla x True"]


def test_a_sharded_script_goes_on_from_its_last_save_and_its_steps_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome, log = run_program(tmp_path, ["torchrun", "sharded.py"], ("kill:rank=1,step=6",))
    assert log.count("resumed at step 4") == 2
    assert outcome.status["progress"]["step"] == 12
    (recovery,) = outcome.status["recoveries"]
    assert recovery["resumedStep"] == 4
    # Rank 1 ends before its sixth update. Rank 0 has what it needs for its own, and may come to it before it is ended.
    assert recovery["lostSteps"] in (1, 2)


def digests(printed: str) -> set[str]:
    """The weights with which ranks say that they ended."""
    return set(re.findall(r"weights (\w+)", printed))


@pytest.fixture(scope="session")
def under_torchrun(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], set[str]]:
    """Runs a program of two ranks under torch's own launcher, and returns the weights with which they end."""

    @cache
    def run_once(program: str) -> set[str]:
        folder = tmp_path_factory.mktemp("torchrun")
        _copy_programs(folder)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return digests(done.stdout)

    return run_once


def skip_without_accelerate(*words: str) -> None:
    if any("accelerate" in word for word in words) and importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("program", KILLS)
def test_a_killed_script_goes_on_and_ends_as_a_calm_one_does_under_torchrun(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    under_torchrun: Callable[[str], set[str]],
    program: str,
    line: str,
) -> None:
    skip_without_accelerate(program, line)
    monkeypatch.chdir(tmp_path)
    fault, resumed = KILLS[program]
    outcome, log = run_program(tmp_path, [*LINES[line], program], (fault,))
    assert digests(log) == under_torchrun(program) != set()
    assert set(re.findall(r"resumed at step (\d+)", log)) == ({str(resumed)} if resumed else set())
    assert outcome.status["progress"]["step"] == 12
    assert [r["resumedStep"] for r in outcome.status["recoveries"]] == [resumed]


@pytest.mark.parametrize("way", ["in-process", "subprocess"])
def test_a_killed_program_that_launches_its_ranks_itself_trains_in_one_world_after_it_was_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, under_torchrun: Callable[[str], set[str]], way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _, log = run_program(tmp_path, ["python", "launching.py", way, "killed_once.py"])
    assert (log.count("launches executed"), log.count("launches forked")) == (2, 2)
    assert re.findall(r"resumed at step (\d+)", log) == ["3", "3"], "each of two ranks, once"
    assert log.count("weights") == 1
    assert digests(log) == under_torchrun("ddp_snapshot.py")


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("program", KILLS)
def test_a_calm_script_ends_as_under_torchrun(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    under_torchrun: Callable[[str], set[str]],
    program: str,
    line: str,
) -> None:
    skip_without_accelerate(program, line)
    monkeypatch.chdir(tmp_path)
    outcome, log = run_program(tmp_path, [*LINES[line], program])
    assert digests(log) == under_torchrun(program) != set()
    assert outcome.status["progress"]["step"] == 12
    assert not outcome.status.get("recoveries")


def test_the_sitecustomize_of_a_job_runs_in_each_rank_of_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    customized = tmp_path / "customized"
    customized.mkdir()
    (customized / "sitecustomize.py").write_text(
        "import os\nif 'RANK' in os.environ:\n"
        "    with open('customized/ranks', 'a') as file:\n"
        "        file.write(os.environ['TORCHELASTIC_RESTART_COUNT'] + os.environ['RANK'] + ' ')\n"
    )
    # It needs no torch: rank 1 kills itself once, when rank 0 has begun, which waits until it is ended for that.
    (tmp_path / "dies.py").write_text(
        "import os, signal, time\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    if os.environ['RANK'] == '1':\n"
        "        while '00' not in open('customized/ranks').read():\n            time.sleep(0.01)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    signal.pause()\n"
    )
    run_program(tmp_path, ["env", f"PYTHONPATH={customized}", "torchrun", "dies.py"])
    assert set((customized / "ranks").read_text().split()) == {"00", "01", "10", "11"}
