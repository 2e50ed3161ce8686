"""A disk without room for what rank 0 writes beside checkpoints: it costs these files, and no step."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks
from trainmaster.rank.reporter import Reporter


@pytest.mark.processes
def test_a_rank_that_can_write_neither_its_metrics_nor_its_end_trains_to_its_last_step(
    ranks: Ranks, tmp_path: Path, text: Path
) -> None:
    job = Job(ranks, tmp_path, text)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    (tmp_path / "final.json").mkdir()  # which no file takes the place of
    outcome = job.round(1, 1)
    assert outcome.codes == [0], outcome.output
    told = outcome.output
    assert told.count("MetricsNotWritten: [Errno 28] No space left on device") == 1, told
    assert told.count("FinalNotWritten: final.json is missing: ") == 1, told
    assert job.checkpoints() == {"step-3.r1", "step-6.r1", "step-9.r1"}


def test_a_line_that_finds_half_the_room_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(output=tmp_path)
    reporter.metrics(step=1)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
    reporter.metrics(step=2)
    reporter.metrics(step=3)
    monkeypatch.undo()
    reporter.metrics(step=4)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 4]
    assert capsys.readouterr().err.count("MetricsNotWritten: [Errno 28] No space left on device") == 1
