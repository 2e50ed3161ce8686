"""The goodput benchmark: which faults it draws, how it accounts for time, and a run of toy size under each system."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import commands, goodput, goodput_runners, load
from benchmarks.goodput import Cell
from benchmarks.goodput_account import (
    OTHER,
    Line,
    Strike,
    account,
    interval,
    losses_digest,
    parse,
    ratio_interval,
    save_seconds,
    step_seconds,
)
from benchmarks.goodput_faults import POD_KILLED, RANK_FROZEN, RANK_KILLED, Fault, draw, young_steps
from benchmarks.goodput_runners import NAMES, SHELL_LOOP, TORCHRUN, TRAINMASTER, Work
from tests.benchmarks import loops_probe
from tests.benchmarks.warm_start import start_warm
from tests.trainer.ranks import Ranks

ROOT = Path(__file__).parents[2]
LIGHT = "benchmarks/goodput_light_script.py"


def line(at_s: float, attempt: int, step: int, what: str = "step", value: str = "0x1.0p+0") -> Line:
    return Line(at_s, attempt, what, step, value)


@given(st.floats(1, 500), st.integers(0, 50), st.integers(2, 600), st.integers(1, 8))
def test_faults_strike_different_steps_before_the_last_in_order(mean: float, seed: int, steps: int, ranks: int) -> None:
    faults = draw(mean, seed, steps, ranks)
    struck = [fault.step for fault in faults]
    assert struck == sorted(set(struck))
    assert all(0 < fault.step < steps and 0 <= fault.rank < ranks for fault in faults)
    assert faults == draw(mean, seed, steps, ranks)


def test_faults_come_at_the_rate_that_is_asked_for_and_in_its_kinds() -> None:
    faults = [fault for seed in range(50) for fault in draw(20, seed, 2000, 4)]
    assert len(faults) == pytest.approx(50 * 2000 / 20, rel=0.1)
    shares = {RANK_KILLED: 0.5, RANK_FROZEN: 0.25, POD_KILLED: 0.25}
    counts = {kind: sum(fault.kind == kind for fault in faults) / len(faults) for kind in shares}
    assert counts == pytest.approx(shares, abs=0.03)


def test_no_faults_are_drawn_without_a_rate() -> None:
    assert draw(0, 1, 1000, 2) == []


def test_youngs_interval_is_the_root_of_twice_a_saves_cost_times_the_time_between_faults() -> None:
    assert young_steps(save_s=0.5, step_s=1.0, mean_steps=100) == 10
    assert young_steps(save_s=1e-6, step_s=1.0, mean_steps=1) == 1, "a save that costs nothing is made in every step"
    with pytest.raises(ValueError, match="steps that take time, and faults"):
        young_steps(0.5, 1.0, 0)


@given(st.floats(0.001, 10), st.floats(0.001, 10), st.floats(1, 1e6))
def test_youngs_interval_costs_no_more_than_its_neighbours(save_s: float, step_s: float, mean: float) -> None:
    def cost(every: int) -> float:
        return save_s / (every * step_s) + every / (2 * mean)

    best = young_steps(save_s, step_s, mean)
    assert cost(best) <= min(cost(best + 2), cost(max(1, best - 2))) * (1 + 1e-9)


def test_time_is_split_by_what_it_was_spent_on() -> None:
    seen = [line(12, 1, 1), line(13, 1, 2), line(13, 1, 2, "save", "0.5"), line(14.5, 1, 3), line(15.5, 1, 4)]
    seen += [line(20, 2, 3), line(21, 2, 4), line(22, 2, 5), line(22, 2, 0, "end", "d")]
    found = account(10, 25, seen, [Strike(15.6, RANK_KILLED)])
    assert found.start_s == 2
    assert found.useful_s == 1 + 1 + 1 + 1
    assert found.saving_s == 0.5
    assert found.repeated_s == 1
    assert found.standstill_s() == {RANK_KILLED: 4.5}
    assert found.end_s == 3
    assert (found.useful_steps, found.repeated_steps) == (5, 2)
    assert found.goodput == pytest.approx(4 / 10)


def test_a_restart_that_no_fault_explains_is_told_apart() -> None:
    seen = [line(1, 1, 1), line(3, 2, 2), line(4, 3, 3)]
    found = account(0, 5, seen, [Strike(1.5, POD_KILLED)])
    assert found.standstills == ((POD_KILLED, 2), (OTHER, 1)), "a fault explains one standstill, not those after it"


@st.composite
def histories(draw_: st.DrawFn) -> tuple[float, list[Line], list[Strike]]:
    """(when the run ended, its lines, what struck it): any attempts, of which each goes on from some earlier step."""
    at, highest, lines, strikes = 1.0, 0, [], []
    for attempt in range(draw_(st.integers(1, 4))):
        step = draw_(st.integers(0, highest))
        for _ in range(draw_(st.integers(1, 8))):
            at, step = at + draw_(st.floats(0.01, 2)), step + 1
            lines.append(line(at, attempt, step))
            if draw_(st.booleans()):
                lines.append(line(at, attempt, step, "save", str(draw_(st.floats(0, 3)))))
        highest = max(highest, step)
        if draw_(st.booleans()):
            strikes.append(Strike(at + 0.001, draw_(st.sampled_from([RANK_KILLED, RANK_FROZEN, POD_KILLED]))))
    return at + draw_(st.floats(0, 3)), lines, strikes


@given(histories())
def test_the_parts_of_a_run_add_up_to_its_wall_time(history: tuple[float, list[Line], list[Strike]]) -> None:
    ended, lines, strikes = history
    found = account(0.5, ended, lines, strikes)
    parts = [found.start_s, found.useful_s, found.repeated_s, found.saving_s, found.end_s]
    assert min(parts) >= 0
    assert sum(parts) + sum(seconds for _, seconds in found.standstills) == pytest.approx(found.wall_s)
    steps = [each.step for each in lines if each.what == "step"]
    assert found.useful_steps == len(set(steps))
    assert found.useful_steps + found.repeated_steps == len(steps)
    assert 0 <= found.goodput <= 1
    assert len([kind for kind, _ in found.standstills if kind != OTHER]) <= len(strikes)


def test_goodput_is_not_more_than_one_by_rounding() -> None:
    at = (1.03, 2.7800000000000002, 3.14352492595966)
    lines = [Line(at_s, 0, "step", number, "0x1.0p+0") for number, at_s in enumerate(at, 1)]
    assert account(0.5, 4.14352492595966, lines, []).goodput == 1


def test_a_run_without_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="completed no step"):
        account(0, 1, [], [])
    with pytest.raises(ValueError, match="no two steps"):
        step_seconds([line(1, 1, 1)])
    with pytest.raises(ValueError, match="saved nothing"):
        save_seconds([line(1, 1, 1)])


def test_a_line_that_is_being_written_is_left_for_later() -> None:
    text = "1000000000 7 step 1 0x1.0p+0\n2000000000 7 save 1 0.25\n30000"
    assert parse(text) == [line(1.0, 7, 1), line(2.0, 7, 1, "save", "0.25")]


def test_a_repeated_step_with_another_loss_is_found() -> None:
    same = [line(1, 1, 1), line(2, 2, 1)]
    assert losses_digest(same) == losses_digest(same[:1])
    with pytest.raises(ValueError, match="step 1 had the loss"):
        losses_digest([line(1, 1, 1), line(2, 2, 1, value="0x1.8p+0")])


def test_the_interval_is_students() -> None:
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)))
    assert ratio_interval([2.0, 8.0, 4.0], [1.0, 4.0, 2.0]) == pytest.approx((2.0, 2.0, 2.0))
    assert math.isnan(interval([1.0])[1])


def test_systems_take_turns_and_calm_runs_come_first() -> None:
    found = goodput.cells([*NAMES], [100.0, 50.0], 2, 30, 2, LIGHT)
    assert [cell.system for cell in found[:3]] == [*NAMES]
    assert all(cell.mean_steps == 0 for cell in found[:3])
    assert [cell.system for cell in found[3::3]] == [TRAINMASTER, TORCHRUN, SHELL_LOOP, TRAINMASTER]
    assert len(set(found)) == len(found) == 3 + 3 * 2 * 2


def test_runs_with_other_losses_are_named() -> None:
    calm = {"script": "s", "steps": 9, "ranks": 2, "system": "a", "mean_steps": 0, "seed": 0}
    calm |= {"losses": "x", "digest": "y"}
    other = {**calm, "system": "b", "mean_steps": 50.0, "seed": 3, "losses": "z"}
    assert goodput.unlike([calm, calm]) == []
    assert goodput.unlike([calm, other]) == [
        "b, 50 steps between faults, seed 3: the losses are not those of a without faults"
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--seeds", "0"], "--seeds 0: at least 1"),
        (["--steps", "20"], "--steps 20: more than 20"),
        (["--rates", "0.5"], "--rates 0.5: at least 1 step"),
    ],
)
def test_what_can_not_be_run_is_refused(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        goodput.read(words)
    assert refused.value.code == 2
    assert why in capsys.readouterr().err


TOY = {
    SHELL_LOOP: [Fault(3, RANK_KILLED, 0), Fault(9, RANK_FROZEN, 1), Fault(15, POD_KILLED, 0)],
    TORCHRUN: [Fault(9, RANK_KILLED, 1)],
    TRAINMASTER: [Fault(3, RANK_KILLED, 1), Fault(9, POD_KILLED, 0)],
}


@pytest.fixture(scope="module")
def calm() -> dict[str, Any]:
    """A run without faults, which all systems' runs are compared with: its losses are the script's."""
    return goodput.measure(Cell(SHELL_LOOP, 0.0, 0, 25, 2, f"{LIGHT} --timeout 5"), None, 60.0)


@pytest.mark.processes
@pytest.mark.parametrize("system", NAMES)
def test_a_run_with_faults_ends_with_the_losses_of_a_calm_one(
    system: str, calm: dict[str, Any], monkeypatch: pytest.MonkeyPatch, warm_runs: None
) -> None:
    monkeypatch.setattr(commands, "popen", start_warm)
    monkeypatch.setattr(load, "look", lambda: load.Load(0.0, 0.0))
    monkeypatch.setattr(goodput, "draw", lambda *_: TOY[system])
    struck = goodput.measure(Cell(system, 10.0, 1, 25, 2, f"{LIGHT} --timeout 0.5"), calm, 120.0)
    assert (calm["struck"], struck["struck"]) == (0, len(TOY[system]))
    assert calm["losses"] == struck["losses"]
    assert calm["digest"] == struck["digest"] != ""
    assert {kind for kind, _ in struck["standstills"]} >= {fault.kind for fault in TOY[system]}


def test_each_run_is_made_once_and_what_is_left_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Cell] = []

    def measure(cell: Cell, calm: dict[str, Any] | None, limit_s: float) -> dict[str, Any]:
        made.append(cell)
        assert (calm is None) is (cell.mean_steps == 0)
        found = {"struck": 0, "wall_s": 1.0, "goodput": 1.0, "repeated_steps": 0, "losses": "x", "digest": "y"}
        return {**asdict(cell), **found, "losses": "z" if cell.seed == 2 else "x"}

    monkeypatch.setattr(goodput, "measure", measure)
    words = ["--seeds", "1", "--rates", "10", "--systems", SHELL_LOOP, "--results", str(tmp_path / "goodput.jsonl")]
    assert goodput.main([*words, "--seconds", "-1"]) == 0
    assert "not over yet" in capsys.readouterr().out
    assert goodput.main(words) == goodput.main(words) == 0
    assert [cell.mean_steps for cell in made] == [0, 10]
    assert goodput.main([*words, "--seeds", "2"]) == 1, "the second seed has other losses"
    assert "not the same: shell loop, 10 steps between faults, seed 2" in capsys.readouterr().out


@pytest.mark.processes
def test_the_script_repeats_its_steps_bit_for_bit_after_a_restart(ranks: Ranks, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder, steps in ((whole, 6), (broken, 5), (broken, 6)):
        folder.mkdir(exist_ok=True)
        assert ranks.call(loops_probe.train_script, str(folder), steps) == [0, 0]
    lines = [parse((folder / "steps-0").read_text()) for folder in (whole, broken)]
    assert [each.step for each in lines[1] if each.what == "step"] == [1, 2, 3, 4, 5, 5, 6], "it went on from its save"
    assert losses_digest(lines[0]) == losses_digest(lines[1])
    assert lines[0][-1].what == lines[1][-1].what == "end"
    assert lines[0][-1].value == lines[1][-1].value


def test_every_runner_starts_the_same_words(tmp_path: Path) -> None:
    work = Work(("/a/script.py", "--steps", "9"), 2, tmp_path)
    for command in (goodput_runners.torchrun_command(work), goodput_runners.loop_command(work)):
        assert command[-3:] == ["/a/script.py", "--steps", "9"]
    goodput_runners.trainmaster_command(work)
    assert "- /a/script.py\n" in (tmp_path / "job.yaml").read_text()


def test_the_lines_of_a_script_are_those_that_are_read(tmp_path: Path) -> None:
    """`goodput_record.py` is what others copy: it must need nothing of ours."""
    code = (
        f"import pathlib, sys\nsys.path.insert(0, {str(ROOT / 'benchmarks')!r})\nfrom goodput_record import StepLog\n"
    )
    code += "log = StepLog(pathlib.Path(sys.argv[1]), 0); log.completed(1, 2.0); log.saved(1, 0.5); log.ended('d')"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, tmp_path], check=True)
    found = parse((tmp_path / "steps-0").read_text())
    assert [(each.what, each.step, each.value) for each in found] == [
        ("step", 1, (2.0).hex()),
        ("save", 1, "0.500000"),
        ("end", 0, "d"),
    ]
    assert (tmp_path / "pid-0").read_text().isdecimal()
