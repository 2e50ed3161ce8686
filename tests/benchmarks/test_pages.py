"""Pages that are made from results: what is made, and that a stale page is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cuda_page, goodput, goodput_page, pages, recovery_page
from benchmarks.goodput_faults import RANK_KILLED
from benchmarks.goodput_runners import SHELL_LOOP, TORCHRUN, TRAINMASTER
from benchmarks.markdown import fill
from benchmarks.recovery import BEST, DOCUMENTED, OURS

ROOT = Path(__file__).parents[2]
MACHINE = {"cpu": "a CPU", "cores": 2, "torch": "9.9"}


@pytest.mark.parametrize(
    "page",
    ["docs/measured.md", "docs/goodput.md", "docs/scripts.md", "docs/frameworks/README.md", "docs/gpu.md", "README.md"],
)
def test_the_committed_page_is_what_its_results_say(page: str) -> None:
    assert pages.made(ROOT / page) == (ROOT / page).read_text()


def test_a_stale_page_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stale = tmp_path / "measured.md"
    stale.write_text("old")
    assert pages.main(["--check", str(stale)]) == 1
    assert f"{stale} is stale: python -m benchmarks.pages {stale}" in capsys.readouterr().err
    assert pages.main([str(stale)]) == 0
    assert pages.main(["--check", str(stale)]) == 0


def test_only_what_stands_in_a_block_is_made() -> None:
    text = "a\n<!-- benchmarks.pages: x -->\nold\n<!-- end -->\nb <!-- end -->\n"
    made = fill(text, {"x": lambda: iter(["new", "lines"])})
    assert made == "a\n<!-- benchmarks.pages: x -->\nnew\nlines\n<!-- end -->\nb <!-- end -->\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [("nothing", "there is no"), ("<!-- benchmarks.pages: y -->\n<!-- end -->\n", "no block is called y; there are")],
)
def test_a_page_with_nothing_to_make_is_refused(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(SystemExit) as refused:
        pages.main([str(page)])
    assert refused.value.code == 2
    assert why in capsys.readouterr().err


def cell(system: str, mean_steps: float, seed: int, wall_s: float, **more: Any) -> dict[str, Any]:
    row = {"system": system, "mean_steps": mean_steps, "seed": seed, "steps": 60, "ranks": 2, "script": "s.py"}
    row |= {"every": 9, "wall_s": wall_s, "goodput": 10 / wall_s, "repeated_steps": 4, "struck": 1, "start_s": 2.0}
    row |= {"standstills": [[RANK_KILLED, wall_s / 10]] if mean_steps else [], "step_s": 0.05, "save_s": 0.01}
    row |= {"busy_cores_before": 0.1, "stolen_cores_before": 0.0, "losses": "x", "digest": "y"}
    return {**row, "last_loss": (0.5).hex(), "machine": MACHINE, **more}


def test_goodput_is_told_with_its_range_its_ratios_and_the_same_losses() -> None:
    rows = [cell(system, 0, 0, 10.0) for system in (TRAINMASTER, TORCHRUN, SHELL_LOOP)]
    for seed in (1, 2, 3):
        rows += [cell(TRAINMASTER, 50, seed, 10.0 + seed), cell(TORCHRUN, 50, seed, 20.0 + 2 * seed)]
        rows += [cell(SHELL_LOOP, 50, seed, 30.0 + 3 * seed)]
    told = "\n".join(goodput_page.of_rows(rows))
    assert "| 50 | 3 | Trainmaster | 9 steps | 12.0 (11.0 to 13.0) |" in told
    assert "| 50 | 2.00 (2.00 to 2.00) | 3.00 (3.00 to 3.00) |" in told
    assert "| Trainmaster | 1.2 (1.3), 3 | none | none | none |" in told
    assert "All 12 runs had bit for bit the same loss in every step" in told
    of_one_seed = "\n".join(goodput_page.of_rows(rows[:5]))
    assert "| 50 | 1 | Trainmaster | 9 steps | 11.0 (one run) |" in of_one_seed
    assert "| 50 |  | shell loop |  | not run |" in of_one_seed
    assert "| 50 | 2.00 (one run) | not run |" in of_one_seed
    short = "\n".join(goodput_page.in_short(rows))
    assert "| goodput, a fault in 50 steps | 0.84 (0.77 to 0.91) | 0.42 (0.38 to 0.45) | 0.28 (0.26 to 0.30) |" in short
    assert "| wall time, a fault in 50 steps | 1 | 2.00 (2.00 to 2.00) | 3.00 (3.00 to 3.00) |" in short
    assert "| standstill: rank killed, s | 1.2 (3 faults) | 2.4 (3 faults) | 3.6 (3 faults) |" in short
    assert "| standstill: pod killed, s | none | none | none |" in short
    rows += [cell(system, 20, 1, 40.0) for system in (TRAINMASTER, TORCHRUN, SHELL_LOOP)]
    with_most_faults = "\n".join(goodput_page.with_most_faults(rows))
    assert "| a fault in 20 steps | Trainmaster | torchrun | shell loop |" in with_most_faults
    assert "| goodput | 0.25 (one run) | 0.25 (one run) | 0.25 (one run) |" in with_most_faults
    assert "| wall time | 1 | 1.00 (one run) | 1.00 (one run) |" in with_most_faults
    del rows[-3:]
    rows[-1]["losses"] = "other"
    assert "**1 of 12 runs ended with other losses than the first.**" in "\n".join(goodput_page.of_rows(rows))
    assert goodput.unlike(rows[:-1]) == []


def run(number: int, system: str, seconds: list[float], script: str = "torch", ranks: int = 4) -> dict[str, Any]:
    row = {"number": number, "ranks": ranks, "script": script, "system": system, "seconds": seconds, "kills": 3}
    parts = [{"restart": s, "imports": 0.0, "rendezvous": 0.0, "build": 0.0, "first step": 0.0} for s in seconds]
    clocks = [{"detect": 0.1}] if system == OURS else []
    row |= {"parts": parts, "clocks": clocks, "busy_cores_before": 0.25, "stolen_cores_before": 0.0}
    return {**row, "machine": MACHINE}


def test_recoveries_are_told_with_the_range_of_the_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [run(1, OURS, [0.1, 0.2, 0.3]), run(1, BEST, [4.0]), run(2, OURS, [0.2]), run(2, BEST, [6.0])]
    rows += [run(1, DOCUMENTED, []), run(1, OURS, [0.1], "light"), run(1, OURS, [0.9], ranks=16)]
    told = "\n".join(recovery_page.compared(rows))
    assert "| 4 | DDP | 0.20 s (0.10 to 0.30), 4 | 5.00 s (4.00 to 6.00), 2 | 20 to 30 (2 runs) | 0.2 to 0.2 |" in told
    assert "| 16 | DDP | 0.90 s (0.90 to 0.90), 1 | not run |  |" in told
    assert recovery_page.documented(rows).endswith("the ranks never came back after they had been killed once.")
    some = [run(1, DOCUMENTED, [9.0]), run(2, DOCUMENTED, [9.0, 8.0, 7.0])]
    assert recovery_page.documented(some).endswith("the ranks came back after 4 of 5 kills.")
    file = tmp_path / "recovery.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(recovery_page, "RESULTS", file)
    section = "\n".join(recovery_page.section())
    assert "| 4 | imports nothing | Trainmaster | 0.10 | 0.00 |" in section
    assert "Machine: a CPU, 2 cores, torch 9.9." in section


def cuda_row(row: str, status: str, **numbers: Any) -> dict[str, Any]:
    device = {"name": "a GPU"}
    return {"part": "runs", "row": row, "status": status, "words": "", "device": device, "machine": MACHINE, **numbers}


@pytest.mark.parametrize(
    ("to_storage", "to_memory", "shown"),
    [([0.047, 1.374], [], "0.05, 1.37"), ([], [2.81, 0.357], "2.81, 0.36")],
    ids=["storage", "memory"],
)
def test_each_save_of_a_checkpoint_is_shown(
    to_storage: list[float], to_memory: list[float], shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cuda.jsonl"
    monkeypatch.setattr(cuda_page, "RESULTS", path)
    saved = {"seconds": {"save": to_storage, "save to memory": to_memory}}
    numbers = {"state_bytes": 3.8e9, "build_s": {"model": 0.1}, "calm_step_s": 0.07, "stall_s": 3.04, "load_s": 1.02}
    row = {**cuda_row("0.3B", "good", saved=saved, **numbers), "part": "checkpoints"}
    path.write_text(f"{json.dumps(row)}\n")
    assert f"| 0.3B | 3.8 | 0.10 | 0.070 | {shown} | 3.040 | 1.02 |" in [*cuda_page.block()]


def test_the_last_measured_result_of_a_row_on_a_device_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cuda.jsonl"
    monkeypatch.setattr(cuda_page, "RESULTS", path)
    assert [*cuda_page.block()] == [cuda_page.NOTHING]
    numbers = {"total_s": 9.2, "phases_s": {"fork": 0.04, "build": 6.2}, "lost_steps": 2, "tier": "ram"}
    rows = [
        cuda_row("a Llama", "good", **numbers),
        cuda_row("a Llama", "good", **{**numbers, "total_s": 3.1}),
        cuda_row("a Llama", "no time left"),
        cuda_row("a script", "FAILED"),
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lines = [*cuda_page.block()]
    assert "| runs | 2 | 1 | a script (FAILED) |" in lines
    assert "| a Llama | 3.10 | 0.04 | 6.20 | 2 | ram |" in lines
