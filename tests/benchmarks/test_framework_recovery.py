"""The recovery of frameworks, with a script that imports none, and its table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import framework_recovery, load, plain_restart, record
from benchmarks.framework_recovery import EXECUTED, FORKED, OWN, Training, plain
from benchmarks.public_scripts.stamps import Kill
from tests import tied
from tests.frameworks.runs import Subject
from trainmaster.contract.wire import environment

TOY = """
import argparse, os, sys, time
parser = argparse.ArgumentParser()
for name in ("--folder", "--steps", "--pause"):
    parser.add_argument(name)
options = parser.parse_args()
saved = os.path.join(options.folder, os.environ["RANK"])
os.makedirs(options.folder, exist_ok=True)
open(os.path.join(options.folder, f"rank-{os.environ['RANK']}-is-{os.getpid()}"), "w").close()
if os.path.exists(saved):
    print("resumed at step 1", flush=True)
name, place = "TORCHELASTIC_RESTART_COUNT", os.path.join(options.folder, "start-{}-{}-rank-{}")
stepped = [place.format(os.environ["MASTER_PORT"], os.environ[name], rank) for rank in range(2)]
for step in range(int(options.steps)):
    open(saved, "w").close()
    time.sleep(0.01)  # a pause of the script's own, which is no step
    time.sleep(float(options.pause))
    # No rank trains on before the other one has taken its first step, as if they met: it could be killed before that.
    open(stepped[int(os.environ["RANK"])], "w").close()
    while not all(map(os.path.exists, stepped)):
        time.sleep(0.01)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    script = tmp_path / "toy.py"
    script.write_text(TOY)
    monkeypatch.setattr(load, "look", lambda: load.Load(0.25, 0.0))
    subject = Subject("PyTorch", "", str(script), ("--steps", "100000"))
    return Training("toy", subject, ("torch",), plain("PyTorch"), (FORKED, OWN))


@pytest.mark.processes
@pytest.mark.parametrize("system", [FORKED, OWN])
def test_a_rank_is_killed_until_it_has_come_back_often_enough(
    toy: Training, system: str, machine_zygote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.ZYGOTE, str(machine_zygote))
    row = framework_recovery.measure(toy, system, Kill(1, 3, 2), 200.0)
    assert len(row["seconds"]) == 2, row
    assert row["resumed"] == 2, "both ranks each time"
    assert (bool(row["told"]), row["launcher"]) == ((False, "plain restart") if system == OWN else (True, ""))
    assert row["versions"].keys() == {"torch"}


MEASURES = """
import sys
from benchmarks import framework_recovery as benchmark
from benchmarks.framework_recovery import Training, plain
from tests.frameworks.runs import Subject
script, results, system = sys.argv[1:]
subject = Subject("PyTorch", "", script, ("--steps", "600"))
training = Training("toy", subject, ("torch",), plain("PyTorch"), (system,))
sys.exit(benchmark.main(["--settle", "600", "600", "--results", results], [training]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("system", [FORKED, OWN])
def test_sigterm_ends_the_benchmark_with_the_job_that_it_measures(
    system: str, tmp_path: Path, machine_zygote: Path
) -> None:
    script, results = tmp_path / "toy.py", tmp_path / "rows.jsonl"
    script.write_text(TOY)
    program = [sys.executable, "-c", MEASURES, str(script), str(results), system]
    env = {**os.environ, environment.ZYGOTE: str(machine_zygote), "TMPDIR": str(tmp_path)}
    benchmark = tied.popen(program, env=env)
    pids: list[int] = []
    try:
        while len(pids) < 2:
            assert benchmark.poll() is None, "it has ended by itself"
            pids = [int(path.name.split("-")[-1]) for path in tmp_path.glob("framework-recovery-*/saved/rank-*-is-*")]
            time.sleep(0.05)
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait(120) == 128 + signal.SIGTERM
        assert [pid for pid in pids if tied.is_alive(pid)] == []
        assert not results.exists(), "a run that was cut off is no result"
    finally:
        for pid in filter(tied.is_alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_a_run_that_is_there_is_not_made_again(
    toy: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, Kill]] = []

    def measured(training: Training, system: str, kill: Kill, limit_s: float) -> dict[str, Any]:
        asked.append((system, kill))
        return {"seconds": [1.5]}

    monkeypatch.setattr(framework_recovery, "measure", measured)
    results = tmp_path / "rows.jsonl"
    words = ["--runs", "2", "--kills", "3", "--settle", "7", "2", "--results", str(results)]
    for _ in range(2):
        assert framework_recovery.main(words, [toy]) == 0
    forked, own = (FORKED, Kill(1, 3, 3, (7.0, 2.0))), (OWN, Kill(1, 3, 3, (2.0, 2.0)))
    assert asked == [forked, own, own, forked], "systems take turns"
    assert [(row["number"], row["system"]) for row in record.read_rows(results)] == [
        (1, FORKED),
        (1, OWN),
        (2, OWN),
        (2, FORKED),
    ]
    assert "run 2, toy" in capsys.readouterr().out


def test_an_unknown_training_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        framework_recovery.main(["--only", "Caffe"])
    assert "--only Caffe: there are DeepSpeed, ZeRO 2, " in capsys.readouterr().err


def test_the_table_has_the_median_of_all_kills_of_each_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"training": "JAX", "script": "jax_digits.py", "versions": {"jax": "0.10.2"}, "busy_cores_before": 0.75}
    rows = tmp_path / "rows.jsonl"
    for system, launcher, seconds in (
        (FORKED, "", [0.3, 0.5]),
        (FORKED, "", [0.4]),
        (EXECUTED, "", []),
        (OWN, "plain restart", [4.0]),
    ):
        record.append_row(rows, {**facts, "system": system, "launcher": launcher, "seconds": seconds, "resumed": 1})
    monkeypatch.setattr(framework_recovery, "RESULTS", rows)
    lines = [*framework_recovery.section()]
    assert lines[-1] == (
        "| JAX | jax 0.10.2 | `jax_digits.py` | 0.40 s (0.30 to 0.50), 3 | no recovery | "
        "4.00 s (4.00 to 4.00), 1: plain restart |"
    )
    assert "up to 0.8 cores" in " ".join(lines)


@pytest.mark.parametrize(("resumed", "shown"), [(2, False), (0, True)])
def test_a_launcher_under_which_the_script_loads_no_checkpoint_is_told_apart(
    resumed: int, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {
        "training": "a Trainer",
        "script": "x.py",
        "versions": {"x": "1"},
        "busy_cores_before": 0.0,
        "seconds": [1],
    }
    rows = tmp_path / "rows.jsonl"
    record.append_row(rows, {**facts, "system": EXECUTED, "launcher": "", "resumed": 2})
    record.append_row(rows, {**facts, "system": OWN, "launcher": "a launcher", "resumed": resumed})
    monkeypatch.setattr(framework_recovery, "RESULTS", rows)
    line = [*framework_recovery.section()][-1]
    assert ("1: a launcher, from the start |" in line) is shown
    assert "| `x.py` | not run | " in line


def test_without_runs_the_page_says_what_makes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework_recovery, "RESULTS", tmp_path / "none")
    assert "python -m benchmarks.framework_recovery" in "".join(framework_recovery.section())


def test_every_example_can_be_run_under_the_systems_that_it_has() -> None:
    known = framework_recovery.trainings()
    assert len({training.name for training in known}) == len(known)
    for training in known:
        assert training.systems == (FORKED, EXECUTED, OWN)
        assert training.subject.length[-1] == framework_recovery.LONG


def test_ranks_of_a_plain_restart_know_each_other_in_the_way_of_their_framework() -> None:
    first, second = plain_restart.rank_variables("TensorFlow", 2, [21001, 21002, 21003])
    assert '"index": 1' in second["TF_CONFIG"]
    assert "127.0.0.1:21002" in first["TF_CONFIG"]
    _, second = plain_restart.rank_variables("JAX", 2, [21001, 21002, 21003])
    assert (second["JAX_COORDINATOR_ADDRESS"], second["SLURM_PROCID"]) == ("127.0.0.1:21001", "1")
    first, _ = plain_restart.rank_variables("DeepSpeed", 2, [21001, 21002, 21003])
    assert (first["MASTER_PORT"], first["TORCHELASTIC_USE_AGENT_STORE"]) == ("21003", "False")


@pytest.mark.processes
def test_a_plain_restart_ends_when_all_ranks_have_ended_well(tmp_path: Path) -> None:
    script = f"[ -e {tmp_path}/$RANK ] || {{ touch {tmp_path}/$RANK; exit $RANK; }}"
    program = [sys.executable, "-m", "benchmarks.plain_restart", "PyTorch", "2", "sh", "-c", script]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "plain_restart: a rank ended with 1; all are started again\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
