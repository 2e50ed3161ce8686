"""The benchmark of the operator's cost at toy size, beside this very checkout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import operator_cost
from benchmarks.operator_cost import Clock, ratio, split

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_both_checkouts_recover_in_turn_and_cpu_time_is_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_cost, "SETTLE_S", (1.0, 1.0))
    options = ["--beside", f"before={ROOT}", "--runs", "1", "--kills", "1", "--ranks", "2", "--pods", "3", "--no-write"]
    assert operator_cost.main(options) == 0
    told = capsys.readouterr().out
    assert re.search(r"^recovery: \d\S* s \(n 1\), before \d\S* \(n 1\), ratio \d\S* \(", told, re.MULTILINE)
    (ours,) = re.findall(r"^recovery, operator: (\S+) CPU ms", told, re.MULTILINE)
    assert float(ours) > 0


def test_cpu_time_between_two_looks_is_a_straight_line() -> None:
    clock = Clock()
    clock.at_ns, clock.spent_ns = [0, 10_000_000, 20_000_000], [0, 4_000_000, 4_000_000]
    assert clock.spent(5_000_000, 30_000_000) == 2.0


def test_a_ratio_has_an_interval_that_holds_it() -> None:
    middle, low, high = ratio([[2.0, 2.2], [2.1, 1.9]], [[1.0, 1.1], [1.05, 0.95]])
    assert low < middle < high
    assert middle == pytest.approx(2.0, rel=0.03)


def test_runs_that_differ_more_than_their_samples_widen_the_interval() -> None:
    """As many independent samples as those of four runs would seem to settle what the runs leave open."""
    slow, fast = [2.0, 2.01, 2.02, 1.99], [1.0, 1.01, 1.02, 0.99]
    ours, other = slow + slow + slow + fast, fast + fast + fast + slow
    alone = [[sample] for sample in ours], [[sample] for sample in other]
    assert ratio(*alone)[1] > 1.0
    assert ratio(split(ours, 4), split(other, 4))[1] < 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--beside", "before=/nowhere"], "--beside before=/nowhere: NAME=FOLDER is expected"),
        (["--beside", f"before={ROOT}", "--pods", "4"], "more pods than ranks are needed"),
    ],
)
def test_bad_input_is_told_in_a_sentence(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        operator_cost.main(options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
