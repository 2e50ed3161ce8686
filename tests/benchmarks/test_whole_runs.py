"""Benchmarks of whole runs on this machine at toy size: that they measure, not what."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import commands, outages, record, resize, tiers
from benchmarks.clocks import clock_cases, closed_clocks, interrupted, nth_clock
from benchmarks.record import Case
from benchmarks.stepwatch import Interruption, Steps
from tests.benchmarks.warm_start import start_warm


@pytest.mark.processes
def test_a_ranks_death_is_a_stretch_without_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warm_runs: None
) -> None:
    monkeypatch.setattr(outages, "RANKS", 2)
    monkeypatch.setattr(outages, "STEPS", 30)
    monkeypatch.setattr(outages, "CASES", {"a leader leads": ["kill:rank=1,step=12"]})
    monkeypatch.setattr(sys, "argv", ["outages", "--repetitions", "1", "--no-write"])
    assert outages.main() == 0
    assert re.search(r"a leader leads +\d+\.\d\d s, a step \d\.\d{3} s", capsys.readouterr().out)


@pytest.mark.processes
def test_a_lost_shard_comes_from_its_tier(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warm_runs: None
) -> None:
    monkeypatch.setattr(commands, "popen", start_warm)
    monkeypatch.setattr(tiers, "TIERS", tiers.TIERS[:1])
    monkeypatch.setattr(sys, "argv", ["tiers", "--megabytes", "1", "--ranks", "2", "--kills", "1", "--no-write"])
    with pytest.raises(SystemExit) as ended:
        tiers.main()
    told = capsys.readouterr().out
    assert ended.value.code == 0, told
    assert re.search(r"1 MB, 2 ranks +own RAM, process killed +\d+\.\d{3}", told)


@pytest.mark.parametrize(("tier", "code"), [("ram", 0), ("storage", 1)])
def test_times_of_another_tier_are_not_written(
    tier: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(_: tiers.Tier, folder: Path, *__: int) -> tuple[list[float], dict[str, Any]]:
        (folder / "output").touch()
        return [0.5], {"recoveries": [{"tier": tier, "clock": {}, "totalSeconds": 0.5}]}

    monkeypatch.setattr(tiers, "measured", measured)
    monkeypatch.setattr(tiers, "TIERS", tiers.TIERS[:1])
    monkeypatch.setattr(tiers, "MEGABYTES", [1])
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["tiers", "--kills", "1"])
    with pytest.raises(SystemExit) as ended:
        tiers.main()
    assert ended.value.code == code
    assert (tmp_path / "tiers.json").exists() is (code == 0)
    assert ("own RAM, process killed: 1 recoveries, from ['storage']" in capsys.readouterr().out) is (code == 1)


@pytest.mark.processes
def test_both_changes_of_size_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_runs: None) -> None:
    monkeypatch.setattr(resize, "WARM_STEP", 10)
    monkeypatch.setattr(resize, "REST_S", 0.05)
    found = resize.measured(tmp_path, resize.MESHES["DDP"])
    assert len(found) == len(resize.SIZES)
    for seen, clock in found:
        assert 0 < seen.stood_still <= seen.until_training
        assert clock["total"] > 0


def test_an_interruption_is_the_longest_stretch_after_what_caused_it() -> None:
    steps = Steps(Path("/nowhere"))
    steps.seen = [1.0, 5.0, 5.1, 5.2, 7.2, 7.3]
    found = steps.interruption(5.15)
    assert found == Interruption(pytest.approx(2.0), pytest.approx(2.05))  # type: ignore[arg-type]


def test_the_operators_clocks_become_cases() -> None:
    status = {
        "recoveries": [
            {"clock": {"detect": 0.1, "fork": 0.2}, "totalSeconds": 0.5},
            {"clock": {"detect": 9.0}},
            {"clock": {"detect": 0.3}, "totalSeconds": 0.7},
        ]
    }
    clocks = closed_clocks(status)
    assert clocks == [{"detect": 0.1, "fork": 0.2, "total": 0.5}, {"detect": 0.3, "total": 0.7}]
    assert nth_clock(2, status) == clocks[1]
    assert nth_clock(3, status) is None
    assert [(case.case, case.samples) for case in clock_cases(Case("x", "us", "s"), clocks)] == [
        ("x, phase detect", [0.1, 0.3]),
        ("x, phase fork", [0.2]),
        ("x, phase total", [0.5, 0.7]),
    ]
    whole = interrupted("y", [(Interruption(1.0, 2.0), clocks[0])])
    assert [case.samples for case in whole[:2]] == [[1.0], [2.0]]


def test_quantiles_are_interpolated_and_need_samples() -> None:
    case = Case("x", "us", "s", [4.0, 1.0, 2.0])
    assert (case.median, case.quantile(0.75)) == (2.0, 3.0)
    with pytest.raises(ValueError, match="x/us: no samples"):
        Case("x", "us", "s").quantile(0.5)


def test_results_of_some_cases_do_not_take_the_place_of_those_of_all() -> None:
    every = {"ddp": 1, "tp whole": 2}
    assert record.name_of("trainer", ["tp whole", "ddp"], every) == "trainer"
    assert record.name_of("trainer", ["tp whole"], every) == "trainer-tp-whole"
    assert record.name_of("create", [1, 10, 100, 2000], [1, 10, 100]) == "create"
    assert record.name_of("create", [10], [1, 10, 100]) == "create-10"


def test_the_folder_of_a_file_of_rows_is_made(tmp_path: Path) -> None:
    path = tmp_path / "not there" / "rows.jsonl"
    for number in (1, 2):
        record.append_row(path, {"number": number})
    assert [row["number"] for row in record.read_rows(path)] == [1, 2]
