"""The record between a rank and its agent: what each side writes, and which records are refused."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

import pytest

from trainmaster.contract.wire.progress_record import (
    COLLECTIVES,
    MAGIC,
    SIZE,
    VERSION,
    Control,
    Progress,
    ProgressRecord,
)


@pytest.fixture
def record() -> Iterator[ProgressRecord]:
    made = ProgressRecord.create(1, 0)
    yield made
    made.close()


def memory_of(record: ProgressRecord) -> bytes:
    return os.pread(record.fd, SIZE, 0)


def test_both_sides_read_what_the_other_has_written(record: ProgressRecord) -> None:
    ranks = ProgressRecord.open(os.dup(record.fd))
    ranks.write(Progress(round=1, rank=0, step=7, loss=0.5))
    record.set_control(
        Control(stop_at=9, stop_bound=1, uploads_pending=3, copied_step=8, ranks_ending=2, uploads_step=7)
    )
    assert (record.read().step, record.read().loss) == (7, 0.5)
    assert ranks.control() == Control(
        stop_at=9, stop_bound=1, uploads_pending=3, copied_step=8, ranks_ending=2, uploads_step=7
    )
    ranks.close()


def test_a_control_is_written_only_when_it_changes(record: ProgressRecord) -> None:
    record.set_control(Control(uploads_pending=3))
    before = memory_of(record)
    record.set_control(Control(uploads_pending=3))
    assert memory_of(record) == before
    record.set_control(Control(uploads_pending=2))
    assert memory_of(record) != before


def test_a_step_and_a_collective_are_told_apart_from_each_other(record: ProgressRecord) -> None:
    """Collectives are entered in any thread of a rank, also while another thread writes the progress."""
    kind = COLLECTIVES.index("barrier")
    record.entered(1000, kind)
    record.write(Progress(step=5))
    told = record.read()
    assert (told.step, told.collectives, told.collective) == (5, 1000, kind)


def test_the_number_and_the_kind_of_a_collective_are_one_aligned_store(record: ProgressRecord) -> None:
    before = memory_of(record)
    record.entered(2**40 + 1, 9)
    after = memory_of(record)
    changed = [place for place in range(SIZE) if before[place] != after[place]]
    assert changed[0] // 8 == changed[-1] // 8


def test_a_record_read_by_its_owner_may_be_changed_without_changing_what_others_read(record: ProgressRecord) -> None:
    record.read().step = 5
    assert record.read().step == 0


@pytest.mark.parametrize(
    ("magic", "version", "words"),
    [(MAGIC, VERSION + 1, f"has layout {VERSION + 1}, .* knows layout {VERSION}: install"), (0, VERSION, "is not the")],
)
def test_memory_of_another_layout_is_refused(magic: int, version: int, words: str) -> None:
    memory = mmap.mmap(-1, SIZE)
    memory[:8] = struct.pack("<II", magic, version)
    with pytest.raises(ValueError, match=words):
        ProgressRecord(memory, 9)
