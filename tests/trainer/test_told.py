"""`run.report(step=N)`: steps of scripts whose loop nobody sees."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
from pathlib import Path

import pytest

import trainmaster as tm
from trainmaster.contract.wire import ExitCode, environment
from trainmaster.contract.wire.progress_record import MAGIC, VERSION, Phase, ProgressRecord
from trainmaster.train import reported_steps, user_loop


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ProgressRecord:
    """The record that an agent reads."""
    record = ProgressRecord.create(round=2, rank=0)
    monkeypatch.setenv(environment.PROGRESS_FD, str(os.dup(record.fd)))
    monkeypatch.setenv(environment.OUTPUT_DIR, str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    return record


@pytest.mark.parametrize("framework", ["JAX", "PyTorch"])
def test_a_step_that_is_told_is_seen_by_the_agent(
    monkeypatch: pytest.MonkeyPatch, record: ProgressRecord, tmp_path: Path, framework: str
) -> None:
    monkeypatch.setenv(environment.FRAMEWORK, framework)
    run = tm.init()
    assert isinstance(run, user_loop.Run if framework == "PyTorch" else reported_steps.ToldSteps)
    run.report(step=31, loss=0.5, tokens=64, accuracy=0.25)
    run.report(step=32, loss=0.25)
    seen = record.read()
    assert (seen.step, seen.resumed_step, seen.phase, seen.loss, seen.tokens) == (32, 30, Phase.STEP, 0.25, 32)
    assert run.step == 32
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(31, 0.5), (32, 0.25)]
    assert lines[0]["accuracy"] == 0.25


def test_a_step_without_a_number_follows_the_last_one(monkeypatch: pytest.MonkeyPatch, record: ProgressRecord) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    run = tm.init()
    run.report()
    run.report()
    assert (run.step, record.read().resumed_step) == (2, 0)


def earlier_reports(folder: Path, *lines: tuple[int, int]) -> None:
    """Write metrics.jsonl with lines of (round, step)."""
    text = "".join(json.dumps({"step": step, "round": round}) + "\n" for round, step in lines)
    (folder / "metrics.jsonl").write_text(text)


@pytest.mark.parametrize(
    ("first", "resumed"),
    [(60, 40), (40, 20), (20, 19), (35, 20), (1, 0)],
)
def test_a_script_that_reports_every_20th_step_resumed_at_the_last_report_before_its_first(
    monkeypatch: pytest.MonkeyPatch, record: ProgressRecord, tmp_path: Path, first: int, resumed: int
) -> None:
    monkeypatch.setenv(environment.FRAMEWORK, "JAX")
    monkeypatch.setenv(environment.ROUND, "2")
    earlier_reports(tmp_path, (1, 20), (1, 40), (2, 50))
    tm.init().report(step=first)
    assert (record.read().step, record.read().resumed_step) == (first, resumed)


@pytest.mark.parametrize("framework", ["JAX", "PyTorch"])
def test_a_script_that_says_where_it_resumed_is_believed(
    monkeypatch: pytest.MonkeyPatch, record: ProgressRecord, tmp_path: Path, framework: str
) -> None:
    monkeypatch.setenv(environment.FRAMEWORK, framework)
    monkeypatch.setenv(environment.ROUND, "2")
    earlier_reports(tmp_path, (1, 20), (1, 40))
    run = tm.init()
    run.resumed(30)
    assert run.step == 30
    run.report(step=50)
    assert (record.read().step, record.read().resumed_step) == (50, 30)
    with pytest.raises(ValueError, match=r"run.resumed\(50\): call it before the first run.report\(\)"):
        run.resumed(50)


def test_a_fault_between_two_reports_is_due_in_the_later_one(
    monkeypatch: pytest.MonkeyPatch, record: ProgressRecord
) -> None:
    monkeypatch.setenv(environment.FRAMEWORK, "JAX")
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(
        reported_steps.injected_faults, "at_step", lambda step, rank, *, after: seen.append((after, step))
    )
    run = tm.init()
    run.resumed(20)
    run.report(step=40)
    run.report(step=60)
    assert seen == [(20, 40), (40, 60)]


def test_a_step_below_0_to_resume_at_is_refused_in_a_sentence() -> None:
    run = reported_steps.ToldSteps(reported_steps.Reporter())
    with pytest.raises(ValueError, match=r"run.resumed\(-1\): the step must be 0 or more"):
        run.resumed(-1)


def test_outside_of_a_job_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.PROGRESS_FD, raising=False)
    run = reported_steps.ToldSteps(reported_steps.Reporter.from_environment())
    run.report(step=7, loss=1)
    assert run.step == 7


@pytest.mark.parametrize("framework", ["JAX", "PyTorch"])
def test_a_program_that_a_rank_starts_without_its_descriptors_may_call_init(
    monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    """Python's subprocess closes them, and leaves the variables."""
    closed, end = os.pipe()
    os.close(closed)
    os.close(end)
    for name in (environment.PROGRESS_FD, environment.CHANNEL_FD):
        monkeypatch.setenv(name, str(closed))
    monkeypatch.setenv(environment.FRAMEWORK, framework)
    run = tm.init()
    run.report(step=7, loss=1)
    assert run.step == 7


def test_a_loop_of_its_own_ends_with_a_sentence_when_its_agent_is_of_another_version(
    monkeypatch: pytest.MonkeyPatch, record: ProgressRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    os.pwrite(record.fd, struct.pack("<II", MAGIC, VERSION + 1), 0)
    with pytest.raises(SystemExit) as ended:
        tm.init()
    assert ended.value.code == ExitCode.CONFIG_ERROR
    said = capsys.readouterr().err
    assert said.startswith(f"trainmaster: the agent's progress record has layout {VERSION + 1}, and the trainmaster")
    assert said.count("\n") == 1


def test_a_step_below_1_is_refused_in_a_sentence() -> None:
    run = reported_steps.ToldSteps(reported_steps.Reporter())
    with pytest.raises(ValueError, match=r"run.report\(step=0\): steps are counted from 1"):
        run.report(step=0)


def test_a_folder_where_nothing_would_be_saved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.FRAMEWORK, "JAX")
    with pytest.raises(ValueError, match="only scripts of torch save there"):
        tm.init(checkpoint_dir="/data")
