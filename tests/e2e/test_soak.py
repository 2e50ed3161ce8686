"""The soak of whole runs: what it tells and keeps when a run goes wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import soak
from tests.e2e.harness import Outcome


def test_a_run_that_ends_too_early_is_told_and_kept_and_the_others_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a run does that fails before it was resized."""
    ran: list[Path] = []

    def disturbed(_: soak.Plan, __: Path, out: Path) -> Outcome:
        ran.append(out)
        out.mkdir()
        raise AssertionError("the run ended before: 2 pods train")

    def calm(_: Path, out: Path, **__: Any) -> Outcome:
        return Outcome(out, 0, "")

    folder = tmp_path / "soak"
    folder.mkdir()
    monkeypatch.setattr(soak, "disturbed", disturbed)
    monkeypatch.setattr(soak, "run", calm)
    monkeypatch.setattr(soak.tempfile, "mkdtemp", lambda prefix: str(folder))
    monkeypatch.setattr(sys, "argv", ["soak", "--runs", "2", "--seed", "7", "--no-write"])
    assert soak.main() == 1
    said = capsys.readouterr().out
    assert said.count("AssertionError: the run ended before: 2 pods train | ") == 2
    assert f"2 runs, 2 differ, 0 recoveries; see {folder}\n" in said
    assert [out.is_dir() for out in ran] == [True, True]
