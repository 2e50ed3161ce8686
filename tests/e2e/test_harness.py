"""What tests of whole runs share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e import harness
from tests.e2e.harness import Outcome, run_calm, script_job


def test_a_calm_run_that_was_cut_off_is_begun_again_in_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in the folder of an earlier one would go on from its checkpoint, and its losses would stand there twice."""
    cut_off = [True, False]

    def run(_: Path, out: Path, faults: Sequence[str] = ()) -> Outcome:
        out.mkdir()
        (out / "metrics.jsonl").write_text("")
        if cut_off.pop(0):
            raise KeyboardInterrupt
        return Outcome(out, 0, "done")

    monkeypatch.setattr(harness, "run", run)
    job = script_job(tmp_path, ["true"])
    with pytest.raises(KeyboardInterrupt):
        run_calm(job, tmp_path)
    assert run_calm(job, tmp_path).output == "done"
