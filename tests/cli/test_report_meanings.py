"""What report.html says about its times, its causes and what it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.runs import CRASH, SUCCEEDED, output_folder, status
from tests.cli.test_report import page
from trainmaster.contract.wire.causes_and_exit_codes import Cause
from trainmaster_operator.cli.display.memory_track import MemoryTrack
from trainmaster_operator.cli.report.goodput_table import STEPS, meaning
from trainmaster_operator.cli.report.metrics_file import Metrics
from trainmaster_operator.cli.report.report_curves import sections as curves
from trainmaster_operator.planning.facts.job_state import JobPhase


def test_each_time_says_what_it_counts(tmp_path: Path) -> None:
    ended = SUCCEEDED.model_copy(update={"completionTime": "2026-12-01T00:00:00.000Z"})
    _, text = page(output_folder(tmp_path / "out", ended))
    for words in (
        "from the start of the job to its end, with the start of the ranks",
        "The time is counted from the end of the first step",
        "The time is that of the steps and the restarts alone, from the beginning of the first step",
        "The time is counted from the first measurement, when the ranks had started",
        "it begins with the last step that was completed before the failure",
    ):
        assert text.count(words) == 1, words


@pytest.mark.parametrize("cause", list(Cause))
def test_each_cause_of_lost_time_is_explained(cause: Cause) -> None:
    assert meaning(cause.value).startswith("Lost to failures of this cause")
    assert ("before the hang was found" in meaning(cause.value)) == (cause is Cause.HANG)


def test_steps_need_no_explanation() -> None:
    assert meaning(STEPS) == ""


def test_the_explanation_of_a_failure_is_on_the_page(tmp_path: Path) -> None:
    _, text = page(output_folder(tmp_path / "out", SUCCEEDED.model_copy(update={"lost": {"Hang": 3.0, "Crash": 1.0}})))
    assert "Hang Lost to failures of this cause" in text
    assert "Crash Lost to failures of this cause" in text


def test_the_page_names_only_files_that_it_was_made_from(tmp_path: Path) -> None:
    out = output_folder(tmp_path / "out")
    assert "Made by Trainmaster from status.yaml, metrics.jsonl and memory.json." in page(out)[1]
    (out / "metrics.jsonl").unlink()
    assert "Made by Trainmaster from status.yaml and memory.json." in page(out)[1]
    (out / "memory.json").unlink()
    assert "Made by Trainmaster from status.yaml." in page(out)[1]


@pytest.mark.parametrize("scripted", [True, False])
def test_the_page_of_a_failed_script_says_how_to_get_a_curve_of_the_loss(scripted: bool) -> None:
    failed = status(JobPhase.FAILED, lastFailure=CRASH)
    drawn = "".join(curves(failed, Metrics(), MemoryTrack(), "tokens", None, skip_empty=True, scripted=scripted))
    assert ("run.report(step=step, loss=loss)" in drawn) == scripted
    assert "<svg" not in drawn
