"""Which cases of the benchmark of spares are run, and which of them are written."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import cluster_spares, record
from benchmarks.stepwatch import Interruption

SAMPLE = (Interruption(0.5, 1.0), {"detect": 0.1})


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of results of runs without a cluster."""

    class NoWorld:
        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            pass

    installation = SimpleNamespace(install=lambda: None, wait_ready=lambda: None)
    stand_ins: dict[str, Any] = {
        "Kube": lambda *_: None,
        "Installation": lambda *_: installation,
        "opened": lambda *_: NoWorld(),
        "disturbed": lambda world, plan: SAMPLE,
        "resized": lambda world: {cluster_spares.size_name(*sizes): SAMPLE for sizes in cluster_spares.SIZES},
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(cluster_spares, name, stand_in)
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    return tmp_path / "cluster-spares.json"


@pytest.mark.parametrize(
    ("only", "cases"),
    [
        ("", [*(plan.name for plan in cluster_spares.PLANS), "4 pods, then 3", "3 pods, then 4"]),
        ("3 pods, then 4", ["4 pods, then 3", "3 pods, then 4"]),
        ("the leader with it", ["2 pods, a node lost and the leader with it, a warm spare"]),
    ],
)
def test_the_cases_that_are_asked_for_are_run_and_only_all_of_them_are_written(
    only: str, cases: list[str], written: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cluster_spares", "--repetitions", "1", "--only", only])
    assert cluster_spares.main() == 0
    told = [line[:58].strip() for line in capsys.readouterr().out.splitlines()]
    assert told[: len(cases)] == cases
    assert written.exists() is (only == "")


def test_words_of_no_case_are_refused_with_the_cases_that_there_are(
    written: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cluster_spares", "--only", "a pod lost"])
    with pytest.raises(SystemExit) as refused:
        cluster_spares.main()
    assert refused.value.code == 2
    assert "--only a pod lost: the cases are 4 pods, a pod deleted, a warm spare; " in capsys.readouterr().err
