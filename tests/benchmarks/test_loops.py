"""Benchmarks of our own loop at toy size: that they measure, not what."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import compiling, link, lossy, overhead, pinning, record, worlds
from tests.benchmarks import loops_probe
from tests.trainer.ranks import Ranks
from trainmaster.contract.config import TrainingConfig


@pytest.mark.processes
def test_a_world_of_our_loop_trains_to_its_end(ranks: Ranks) -> None:
    lines = ranks.call(loops_probe.train, 2)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["seconds"] > 0 and line["tokens"] > 0 and line["loss"] > 0 for line in lines)


@pytest.mark.processes
@pytest.mark.parametrize("source", ["text", "tokens, not in the page cache"])
def test_each_step_and_save_of_a_rank_is_timed(source: str, ranks: Ranks, tmp_path: Path) -> None:
    data, evicted = {"path": "@stdlib"}, ""
    if source != "text":
        evicted = ranks.call(loops_probe.write_tokens, str(tmp_path))
        data = {"source": "tokens", "path": evicted}
    found = ranks.call(loops_probe.wait, data, evicted)
    assert len(found["steps"]) == len(found["data"]) == 6
    assert len(found["saves"]) == 3
    assert all(seconds >= 0 for times in found.values() for seconds in times)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("case", "system"),
    [("replicate", "trainmaster"), ("shard", "minimal"), ("memory", "saved to memory at each step")],
)
def test_both_sides_of_a_case_train_blocks_in_turn(case: str, system: str, ranks: Ranks) -> None:
    speeds = ranks.call(loops_probe.overheads, case, system)
    assert len(speeds) == 2
    assert min(speeds) > 0


def test_too_few_blocks_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["overhead", "--pairs", "9"])
    with pytest.raises(SystemExit):
        overhead.main()
    assert "at least 10 pairs" in capsys.readouterr().err


@pytest.mark.processes
def test_each_tensor_of_a_row_is_counted(ranks: Ranks) -> None:
    rows = ["ZeRO 3, offload", "pipeline, 1F1B, 8 micro-batches"]
    told = ranks.call(loops_probe.memories, rows).splitlines()
    assert [line[:34].strip() for line in told] == rows
    for line in told:
        sizes = {name: float(size) for name, size in re.findall(r"(\w+) +([\d.]+)", line[34:])}
        assert set(sizes) >= {"parameters", "gradients", "optimizer", "activations", "peak"}


class Invented:
    """Stands for `worlds.train`: checks the job as a run would, and invents what its steps took."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []

    def __call__(self, config: dict[str, Any], ranks: int, **_: Any) -> list[dict[str, Any]]:
        TrainingConfig.model_validate(config).accumulation(ranks)
        self.jobs.append(config)
        seconds = 0.01 + 0.001 * len(self.jobs)
        return [{"step": n, "loss": 2.0, "tokens": 64, "seconds": seconds} for n in range(1, config["steps"] + 1)]


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> Invented:
    trained = Invented()
    monkeypatch.setattr(worlds, "train", trained)
    return trained


def test_every_technique_of_the_losses_is_a_job_that_is_legal(
    invented: Invented, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lossy", "--seeds", "2", "--no-write"])
    assert lossy.main() == 0
    told = capsys.readouterr().out
    assert len(invented.jobs) == 2 * len(lossy.TECHNIQUES)
    assert all(name in told for name in lossy.TECHNIQUES)


def test_compiled_runs_and_eager_ones_take_turns(
    invented: Invented, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # is set by the benchmark, and set back after this test
    monkeypatch.setattr(sys, "argv", ["compiling", "--pairs", "2", "--steps", "2", "--no-write"])
    assert compiling.main() == 0
    of_a_case = [job["compile"] for job in invented.jobs[:4]]
    assert of_a_case == [True, False, False, True] or of_a_case == [False, True, True, False]
    assert set(re.findall(r"^(\w+): tokens/s", capsys.readouterr().out, re.M)) == set(compiling.CASES)


def test_pinned_runs_and_others_take_turns(
    invented: Invented, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pinning", "--ranks", "1", "--pairs", "2", "--steps", "2", "--no-write"])
    assert pinning.main() == 0
    assert len(invented.jobs) == 2 * 2 * len(pinning.CASES)
    assert set(re.findall(r"^(\w+): ms of a step", capsys.readouterr().out, re.M)) == set(pinning.CASES)


@pytest.mark.parametrize(
    ("benchmark", "options", "file"),
    [
        (pinning, ["--ranks", "1", "--pairs", "2", "--steps", "2", "--cases", "shard"], "pinning-shard.json"),
        (compiling, ["--pairs", "2", "--steps", "2", "--cases", "shard"], "compiling-shard.json"),
        (compiling, ["--pairs", "2", "--steps", "2"], "compiling.json"),
    ],
)
def test_some_cases_alone_leave_the_results_of_all_as_they_are(
    benchmark: ModuleType,
    options: list[str],
    file: str,
    invented: Invented,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.setattr(sys, "argv", [benchmark.__name__, *options])
    assert benchmark.main() == 0
    assert [path.name for path in tmp_path.iterdir()] == [file]


class NoLink:
    """Stands for two namespaces: each look at the interface finds a thousand bytes more."""

    def __init__(self, rate: str) -> None:
        self._sent = 0

    def inside(self, rank: int, *command: str) -> list[str]:
        return [*command]

    def sent(self, rank: int) -> int:
        self._sent += 1000
        return self._sent

    def close(self) -> None:
        pass


def test_every_method_on_a_slow_link_is_a_job_that_is_legal(
    invented: Invented, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(link, "Link", NoLink)
    monkeypatch.setattr(sys, "argv", ["link", "--rates", "1gbit", "--rounds", "2", "--steps", "2", "--no-write"])
    assert link.main() == 0, "goals are of the slower link alone"
    told = capsys.readouterr().out
    assert len(invented.jobs) == 2 * len(link.METHODS)
    assert all(name in told for name in link.METHODS)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("benchmark", "options", "count"),
    [
        (lossy, ["--seeds", "1"], lossy.RANKS),
        (compiling, ["--pairs", "2", "--steps", "2"], compiling.RANKS),
        (pinning, ["--ranks", "1", "--pairs", "2", "--steps", "2"], 1),
        (link, ["--rates", "1gbit", "--rounds", "1", "--steps", "2"], len(link.ADDRESSES)),
    ],
    ids=["lossy", "compiling", "pinning", "link"],
)
def test_a_job_of_each_of_these_benchmarks_trains(
    benchmark: ModuleType,
    options: list[str],
    count: int,
    ranks: Ranks,
    invented: Invented,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first eager one: compiled models are trained in tests/trainer/test_compiling.py."""
    monkeypatch.setattr(link, "Link", NoLink)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.setattr(sys, "argv", [benchmark.__name__, *options, "--no-write"])
    benchmark.main()
    job = next(job for job in invented.jobs if not job.get("compile"))
    lines = ranks.call(loops_probe.train_job, job, count)
    assert [line["step"] for line in lines if "loss" in line] == [1, 2]
