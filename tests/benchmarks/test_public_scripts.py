"""The driver of public scripts, with scripts of our own in the place of snapshots; nothing is downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import load, record, script_recovery
from benchmarks.public_scripts import __main__ as driver
from benchmarks.public_scripts import page, runs, stamps
from benchmarks.public_scripts.runs import OURS, PEER
from benchmarks.public_scripts.scripts import BadSources, Change, Lines, PublicScript, Weights, digest, unpack
from benchmarks.public_scripts.stamps import Kill, Step
from trainmaster.contract.wire import environment

SECOND = 10**9

OPTIMIZER = """
hooks = []
register_optimizer_step_post_hook = hooks.append

def step():
    for hook in hooks:
        hook(None, (), {})
"""
TRAIN = """
import sys
import time

import counted

for step in range(int(sys.argv[1])):
    counted.step()
    time.sleep(0.02)
print("tps: 7.5")
print("\\x1b[31mdevice: GPU, steps:", step + 1)
"""


def toy(steps: int, **more: Any) -> PublicScript:
    return PublicScript(
        **{
            "name": "toy",
            "repository": "somebody/toys",
            "commit": "0123456789",
            "folder": "examples",
            "words": ("train.py", str(steps)),
            "end": Lines(r"device.*"),
            "changes": (Change("train.py", "device: GPU", "device: CPU", "it takes a GPU"),),
            "kill_step": 4,
            "hook": "counted",
            "rate": r"tps: ([\d.]+)",
            **more,
        }
    )


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "sources" / "somebody" / "toys" / "examples"
    folder.mkdir(parents=True)
    (folder / "counted.py").write_text(OPTIMIZER)
    (folder / "train.py").write_text(TRAIN)
    monkeypatch.setattr(load, "look", lambda: load.Load(0.25, 0.0))
    return tmp_path / "sources"


@pytest.mark.processes
@pytest.mark.parametrize("system", [PEER, OURS])
def test_a_killed_script_is_stamped_and_its_end_is_read(
    system: str, sources: Path, machine_zygote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.ZYGOTE, str(machine_zygote))
    row = runs.run(toy(20), sources, system, Kill(1, 4), 0.0, 200.0)
    assert (row["exit_code"], row["deaths"], row["restarts"]) == (0, 1, 1), row
    assert row["end"] == "device: CPU, steps: 20"
    (seconds,) = row["recoveries_s"]
    assert seconds is not None
    assert row["rates"][-1] == 7.5
    assert bool(row["told"]) is (system == OURS)


@pytest.mark.processes
def test_a_script_is_killed_until_it_has_come_back_often_enough(
    sources: Path, machine_zygote: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(environment.ZYGOTE, str(machine_zygote))
    results = tmp_path / "rows.jsonl"
    measure = script_recovery.measure
    monkeypatch.setattr(
        script_recovery,
        "measure",
        lambda script, folder, system, *more: (
            measure(script, folder, system, *more)
            if system == OURS
            else {"script": "toy", "system": PEER, "seconds": [9.0]}
        ),
    )
    words = ["--sources", str(sources), "--runs", "1", "--kills", "2", "--settle", "0", "0", "--results", str(results)]
    for _ in range(2):
        assert script_recovery.main(words, [toy(100000)]) == 0
    ours, peer = record.read_rows(results)
    assert len(ours["seconds"]) == 2
    assert (peer["number"], peer["seconds"]) == (1, [9.0])
    ((name, our_median, peer_median),) = script_recovery.medians([ours, peer])
    assert (name, peer_median) == ("toy", 9.0)
    assert min(ours["seconds"]) <= our_median <= max(ours["seconds"])


def test_every_script_runs_calm_and_killed_under_both_systems_and_none_again(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def run(
        script: PublicScript, folder: Path, system: str, kill: Kill | None, pace_s: float, limit_s: float
    ) -> dict[str, Any]:
        asked.append((system, kill, pace_s, limit_s))
        return row(system=system, killed=kill is not None)

    monkeypatch.setattr(driver, "run", run)
    words = ["--sources", str(sources), "--results", str(tmp_path / "rows.jsonl"), "--patience", "2"]
    for _ in range(2):
        assert driver.main(words, [toy(8, pace_s=0.5)]) == 0
    assert asked == [
        (PEER, None, 0.0, 800.0),
        (OURS, None, 0.0, 800.0),
        (PEER, Kill(1, 4), 0.5, 800.0),
        (OURS, Kill(1, 4), 0.5, 800.0),
    ]
    assert "trainmaster killed exit 0, 16 steps, 3 s, end e, back after 1.50 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (toy(8, folder="gone"), "toy: {}/somebody/toys/gone is missing; it should hold gone of somebody/toys"),
        (toy(8, changes=(Change("train.py", "x = 1", "", ""),)), "train.py has no 'x = 1': is it 0123456789?"),
    ],
)
def test_a_snapshot_that_lacks_something_is_named(
    script: PublicScript, why: str, sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadSources):
        unpack(script, sources, tmp_path / "work")
    assert driver.main(["--sources", str(sources), "--results", str(tmp_path / "rows")], [script]) == 2
    assert why.format(sources) in capsys.readouterr().err


@pytest.mark.parametrize("left", [0, 1])
def test_a_command_without_time_says_that_it_goes_on_only_if_runs_are_left(
    left: int, sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "rows"
    runs_of_all = [(killed, system) for killed in (False, True) for system in (PEER, OURS)]
    for killed, system in runs_of_all[left:]:
        record.append_row(results, {"script": "toy", "system": system, "killed": killed})
    assert driver.main(["--sources", str(sources), "--results", str(results), "--seconds", "-1"], [toy(8)]) == 0
    assert ("the same command goes on" in capsys.readouterr().out) is bool(left)


@pytest.mark.parametrize("main", [driver.main, script_recovery.main])
@pytest.mark.parametrize(
    ("words", "why"),
    [(["--sources", "/no/such"], "there is no such folder"), (["--only", "x"], "--only x: the scripts are ")],
)
def test_what_can_not_be_run_is_refused(
    main: Any, words: list[str], why: str, sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--sources", str(sources), *words])
    assert refused.value.code == 2
    assert why in capsys.readouterr().err


def test_the_snapshots_that_are_needed_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert driver.main(["--list"], [toy(8)]) == 0
    assert capsys.readouterr().out == "somebody/toys 0123456789 toy\n"


def test_a_script_that_resumes_by_an_option_gets_it_from_the_second_round_on() -> None:
    script = toy(8, restart=("--resume", "out"))
    assert runs.job_of(script, {})["spec"]["workers"]["restartCommand"] == [*runs.line(script), "--resume", "out"]
    *_, shell, _, script_name, steps = runs.torchrun_line(script)
    assert 'TORCHELASTIC_RESTART_COUNT" = 0 ] || set -- "$@" --resume out;' in shell
    assert (script_name, steps) == ("train.py", "8")


def steps_of(*steps: tuple[float, int]) -> list[Step]:
    """(seconds, pid)."""
    return [Step(int(at * SECOND), pid, pid % 2, 0, 1) for at, pid in steps]


def test_optimizers_that_step_in_turn_make_one_step_together(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(
        "hooks = []\nregister_optimizer_step_post_hook = hooks.append\n"
        "def step(optimizer):\n    for hook in hooks:\n        hook(optimizer, (), {})\n"
    )
    code = "import counted\nfor _ in range(3):\n    counted.step('one')\n    counted.step('other')\n"
    variables = stamps.variables(tmp_path, None, 0.0, "counted")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, **variables}, check=True)
    assert [step.count for step in stamps.read_steps(tmp_path)] == [1, 2, 3]


def test_the_last_steps_can_be_read_alone(tmp_path: Path) -> None:
    assert stamps.read_steps(tmp_path) == []
    (tmp_path / "steps").write_text("".join(f"{at}000 7 0 0 {at}\n" for at in range(1, 90)))
    assert [step.count for step in stamps.read_steps(tmp_path)] == [*range(1, 90)]
    assert [step.count for step in stamps.read_steps(tmp_path, 40)] == [88, 89], "a cut line is left out"
    assert len(stamps.read_steps(tmp_path, 10_000)) == 89


def test_a_recovery_ends_when_as_many_new_processes_have_stepped() -> None:
    steps = steps_of((1, 10), (1.5, 11), (2, 10), (2.5, 11), (5, 20), (6, 21), (7, 20), (9, 30), (9.5, 31))
    assert stamps.recoveries(steps, [2 * SECOND]) == [4.0], "process 11 went on for a moment, and is no new one"
    assert stamps.recoveries(steps, [2 * SECOND, 8 * SECOND]) == [4.0, 1.5]
    assert stamps.recoveries(steps, [2 * SECOND, 8 * SECOND, 10 * SECOND]) == [4.0, 1.5, None]
    assert stamps.recoveries(steps, [2 * SECOND, int(5.5 * SECOND)])[0] is None
    assert stamps.recoveries([], [2 * SECOND]) == [None]


def test_a_process_that_takes_its_first_step_just_after_the_death_of_another_is_not_a_new_one() -> None:
    """Scripts of one step: the killed process was the first to take it."""
    steps = [
        Step(int(at * SECOND), pid, 0, attempt, 1)
        for at, pid, attempt in ((1, 10, 0), (2, 11, 0), (5, 20, 1), (6, 21, 1))
    ]
    assert stamps.recoveries(steps, [int(1.5 * SECOND)]) == [4.5]


def test_weights_of_other_bits_or_names_have_another_digest(tmp_path: Path) -> None:
    import torch

    state = {"model": {"a": torch.zeros(2), "b": [torch.ones(1)]}, "step": 3, "rng": torch.rand(3)}
    torch.save(state, tmp_path / "saved.pt")
    found = Weights("*.pt", "model").read(tmp_path, "")
    assert found == digest({"a": torch.zeros(2), "b": [torch.ones(1)]})
    others = [{"a": torch.zeros(2), "b": [torch.full((1,), 2.0)]}, {"c": torch.zeros(2), "b": [torch.ones(1)]}]
    assert found not in map(digest, others)
    assert Weights("*.bin").read(tmp_path, "") == ""


def test_lines_are_the_last_ones() -> None:
    assert Lines(r"loss \d", 2).read(Path(), "loss 1\nloss 3\nloss 2\n") == "loss 3 | loss 2"
    assert Lines(r"loss \d", 2, sort=True).read(Path(), "loss 1\nloss 3\nloss 2\n") == "loss 2 | loss 3"


def row(**more: Any) -> dict[str, Any]:
    found = {"script": "toy", "system": OURS, "killed": False, "exit_code": 0, "end": "e", "steps": 16, "seconds": 3.0}
    return {**found, "deaths": int(more.get("killed", False)), "recoveries_s": [1.5] * more.get("killed", 0), **more}


def test_the_table_says_what_a_killed_run_is_the_same_as() -> None:
    rows = [row(), row(system=PEER), row(killed=True), row(system=PEER, killed=True, end="other", recoveries_s=[None])]
    assert page.line(toy(8), rows)[1:] == ["yes", "a calm run", "1.5 s", "never"]
    assert page.line(toy(8), [row(exit_code=1), row(system=PEER)])[1:3] == ["no: trainmaster ended with 1", "not run"]
    assert page.line(toy(8), [row(killed=True, end="z"), *rows[:2]])[2] == "neither"
    fast = [row(rates=[90.0, 110.0, 100.0]), row(system=PEER, rates=[99.0])]
    assert "median of its calm run: 100, under torchrun 99." in page.rates(toy(8), fast)
    assert page.rates(toy(8), fast[:1]) == ""
    assert " ".join(page.noted(toy(8))) == "- toy: Changed: 1 in `train.py`, because it takes a GPU."


def test_medians_of_recoveries_stand_beside_torchruns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_recovery, "RESULTS", tmp_path / "rows.jsonl")
    assert [*script_recovery.section()] == [
        "No run is committed yet; `python -m benchmarks.script_recovery` makes them."
    ]
    for system, seconds in ((OURS, [1.0, 3.0]), (PEER, [9.0]), (OURS, [2.0])):
        record.append_row(tmp_path / "rows.jsonl", {"script": "toy", "system": system, "seconds": seconds})
    assert [*script_recovery.section()][-1] == "| toy | 2.00 s | 9.00 s | 4.5 times | 3 and 1 |"
