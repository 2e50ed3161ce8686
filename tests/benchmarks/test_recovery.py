"""The recovery benchmark: what it reads from stamps, how it compares runs, and a run of toy size of each system."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks import commands, load, record, recovery, recovery_script
from benchmarks.recovery import BEST, DOCUMENTED, OURS, Run
from benchmarks.recovery_stamps import IMPORTS, PARTS, RESTART, Stamp, parts, read, times
from e2e.processor_time import Ticks
from tests.benchmarks import loops_probe
from tests.benchmarks.warm_start import start_warm
from tests.trainer.ranks import Ranks

SECOND = 10**9


def stamps(*events: tuple[int, float, int, str, float]) -> list[Stamp]:
    """(rank, seconds, attempt, event, seconds of imports)."""
    return [Stamp(rank, int(at * SECOND), n, event, int(imports * SECOND)) for rank, at, n, event, imports in events]


RECOVERED = stamps(
    (0, 1, 0, "first", 0),
    (1, 1, 0, "first", 0),
    (1, 5, 0, "death", 0),
    (0, 7, 1, "begin", 0),
    (1, 8, 1, "begin", 0),
    (0, 11, 1, "joined", 2),
    (1, 12, 1, "joined", 3),
    (0, 14, 1, "built", 3),
    (1, 15, 1, "built", 5),
    (0, 16, 1, "first", 3),
    (1, 16, 1, "first", 5),
)


def test_a_recovery_ends_with_the_first_step_of_the_last_rank() -> None:
    assert times(RECOVERED, 2, 1) == [11.0]
    assert times(RECOVERED, 3, 1) == [], "the third rank never stepped"
    assert times([s for s in RECOVERED if s.event != "death"], 2, 1) == []


def test_the_parts_of_a_recovery_add_up_to_it_and_imports_are_told_apart_wherever_they_are() -> None:
    (found,) = parts(RECOVERED, 2, 1)
    assert found == {RESTART: 3.0, IMPORTS: 3.0 + 2.0, "rendezvous": 1.0, "build": 1.0, "first step": 1.0}
    assert sum(found.values()) == times(RECOVERED, 2, 1)[0]
    assert tuple(found) == PARTS


def test_a_recovery_without_all_stamps_has_no_parts() -> None:
    assert parts([s for s in RECOVERED if s.event != "built"], 2, 1) == []


def test_a_restart_that_fails_is_part_of_the_recovery_that_it_delays() -> None:
    failed = stamps((0, 9, 1, "begin", 0), (1, 9, 1, "begin", 0), (0, 10, 1, "first", 0))
    back = [stamp._replace(attempt=2, at_ns=stamp.at_ns + 20 * SECOND) for stamp in RECOVERED if stamp.attempt == 1]
    before = [stamp for stamp in RECOVERED if stamp.attempt == 0]
    assert times(before + failed + back, 2, 2) == [31.0]
    (split,) = parts(before + failed + back, 2, 2)
    assert (split[RESTART], sum(split.values())) == (23.0, 31.0)
    again = stamps((1, 11, 1, "death", 0))
    assert times(before + failed + again + back, 2, 2) == [25.0], "all ranks stepped after the second death alone"


def test_stamps_of_scripts_that_count_no_imports_are_read(tmp_path: Path) -> None:
    (tmp_path / "stamps-1").write_text("5000000000 0 death 17\n6000000000 1 first 18 250\n")
    assert read(tmp_path, 2) == [
        Stamp(1, 5 * SECOND, 0, "death", 0),
        Stamp(1, 6 * SECOND, 1, "first", 250),
    ]


def row(number: int, system: str, seconds: list[float], **more: Any) -> dict[str, Any]:
    found = {"number": number, "ranks": 4, "script": "torch", "system": system, "seconds": seconds, "parts": []}
    return {**found, **more}


def test_a_ratio_is_that_of_one_run_and_a_run_that_one_system_lacks_has_none() -> None:
    rows = [row(1, OURS, [1.0, 2.0, 3.0]), row(1, BEST, [8.0]), row(2, OURS, [1.0]), row(2, BEST, [])]
    rows += [row(3, BEST, [9.0]), row(3, OURS, [3.0]), row(3, OURS, [1.0], script="light")]
    assert recovery.ratios(rows, 4, "torch") == [4.0, 3.0]
    assert recovery.samples(rows, 4, "torch", OURS) == [1.0, 2.0, 3.0, 1.0, 3.0]
    assert recovery.part_medians(rows, 4, "torch", OURS) == {}


def test_systems_take_turns_and_the_way_that_does_not_recover_is_tried_once() -> None:
    given = recovery.read(["--ranks", "4", "16", "--runs", "2", "--scripts", "torch"])
    assert [(run.number, run.ranks, run.system) for run in recovery.planned(given)] == [
        (1, 4, OURS),
        (1, 4, BEST),
        (1, 4, DOCUMENTED),
        (1, 16, OURS),
        (2, 4, BEST),
        (2, 4, OURS),
        (2, 16, OURS),
    ]


@pytest.mark.parametrize(
    ("words", "why"), [(["--runs", "0"], "--runs 0: at least 1"), (["--ranks", "1"], "--ranks 1: at least 2")]
)
def test_what_can_not_be_run_is_refused(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        recovery.read(words)
    assert refused.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("system", [OURS, BEST])
def test_a_run_that_fails_before_its_kill_is_no_run_without_recoveries(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str], variables: dict[str, str], output: Path, limit_s: float) -> int:
        output.write_text("the address is in use")
        return 1

    monkeypatch.setattr(commands, "run", fail)
    monkeypatch.setattr(load, "look", lambda: load.Load(0.0, 0.0))
    monkeypatch.setattr(recovery, "planned", lambda given: [Run(1, 2, "light", system)])
    results = tmp_path / "recovery.jsonl"
    with pytest.raises(SystemExit, match="the address is in use"):
        recovery.main(["--results", str(results)])
    assert record.read_rows(results) == []


@pytest.mark.processes
@pytest.mark.parametrize("system", [OURS, BEST])
def test_a_run_recovers_from_its_kill_and_is_not_made_again(
    system: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warm_runs: None,
) -> None:
    monkeypatch.setattr(commands, "popen", start_warm)
    monkeypatch.setattr(load, "look", lambda: load.Load(1.5, 0.25))
    monkeypatch.setattr(recovery, "planned", lambda given: [Run(1, 2, "light", system)])
    results = tmp_path / "recovery.jsonl"
    words = ["--settle", "0.1", "--kills", "2", "--results", str(results)]
    assert recovery.main(words) == 0
    assert recovery.main(words) == 0
    (found,) = record.read_rows(results)
    assert len(found["seconds"]) == found["kills"] == 1
    assert (found["busy_cores_before"], found["stolen_cores_before"]) == (1.5, 0.25)
    (split,) = found["parts"]
    assert sum(split.values()) == pytest.approx(found["seconds"][0], abs=0.001)
    assert bool(found["clocks"]) is (system == OURS)


@pytest.mark.processes
def test_the_script_with_torch_stamps_its_death_and_each_part_of_its_recovery(ranks: Ranks, tmp_path: Path) -> None:
    codes = [ranks.call(loops_probe.recover, str(tmp_path), attempt) for attempt in range(2)]
    assert -signal.SIGKILL in codes[0]
    assert codes[1] == [0, 0]
    stamps = read(tmp_path, 2)
    (split,) = parts(stamps, 2, 1)
    assert sum(split.values()) == pytest.approx(times(stamps, 2, 1)[0])


def test_an_import_that_another_one_makes_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = recovery_script.ImportClock()

    def imports(name: str) -> str:
        return clock._timed("inner") if name == "outer" else name

    monkeypatch.setattr(clock, "_import", imports)
    ticks = iter([0, 40, 100, 200, 250])
    monkeypatch.setattr(recovery_script.time, "monotonic_ns", lambda: next(ticks))
    assert clock._timed("outer") == "inner"
    assert clock.spent_ns == 100
    clock._timed("alone")
    assert clock.spent_ns == 150


def test_the_load_is_what_was_spent_between_two_looks() -> None:
    lines = "cpu 100 0 50 1000 10 0 5 7 0 0", "cpu 200 0 70 1060 20 0 5 27 0 0"
    before, after = map(Ticks.parse, lines)
    found = load.between(before, after, 1.0, 100)
    assert found == pytest.approx((1.2, 0.2)), "(user and system, stolen) of 100 ticks"
    with pytest.raises(ValueError, match="no time passed"):
        load.between(before, after, 0.0, 100)
