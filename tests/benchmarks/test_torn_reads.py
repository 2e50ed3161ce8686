"""The record between a rank and its agent, beside a writer at full speed and after writers were killed."""

from __future__ import annotations

import sys

import pytest

from benchmarks import torn_reads
from trainmaster.contract.wire import Control, Progress, ProgressRecord


@pytest.mark.processes
def test_no_read_is_torn_at_full_speed_or_after_a_kill(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["torn_reads", "--reads", "50000", "--kills", "10", "--no-write"])
    assert torn_reads.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{half}, double buffer: 0 of 50000 reads torn, 0 of 10 records of killed writers"
        for half in torn_reads.DIRECTIONS
    ]


def test_a_torn_record_is_counted() -> None:
    whole = torn_reads.progress_of(7)
    whole.collectives, whole.collective = 23, 3
    assert torn_reads.number_of(whole) == 7
    whole.collective = 4
    assert torn_reads.number_of(whole) is None
    assert torn_reads.number_of(Progress(step=7)) is None
    assert torn_reads.number_of(torn_reads.control_of(7)) == 7
    assert torn_reads.number_of(Control(stop_at=0, stop_bound=1)) is None


def test_the_agents_half_is_written_without_being_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    record = ProgressRecord.create(1, 0)
    publish = torn_reads.control_writer(record)
    with monkeypatch.context() as patch:
        patch.setattr(record._control, "read", lambda: pytest.fail("it was read"))
        publish(torn_reads.control_of(7))
        publish(torn_reads.control_of(7))
    assert record.control() == torn_reads.control_of(7)
    record.close()
