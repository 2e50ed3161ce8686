"""A record in shared memory is read whole, or its reader keeps the one before: in a model, and after each store."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.memory_model import Bytes, Log, Step, View, Words, outcomes
from trainmaster.contract.wire import double_buffer
from trainmaster.contract.wire.double_buffer import DoubleBuffer
from trainmaster.contract.wire.progress_record import _PROGRESS, _PROGRESS_AT

SMALL = "BB"  # two fields of one byte each: enough to be torn
SIZE = 2 * (16 + struct.calcsize(SMALL))
RECORDS = [(n, 10 * n) for n in range(1, 6)]


def over(memory: Any) -> DoubleBuffer:
    """A double buffer of two small fields over `memory`, which is a Log or a View."""
    made = DoubleBuffer(memoryview(bytearray(64)), SMALL)
    made._fields = struct.Struct("<BB")
    for number, buffer in enumerate(made._buffers):
        at = number * SIZE // 2
        buffer.words, buffer.fields = Words(memory, at), Bytes(memory, at + 16, 2)  # type: ignore[assignment]
    return made


def written(before: int, during: int) -> tuple[bytes, list[Step]]:
    """(memory after the first records, the steps in which the next ones are written)."""
    log = Log(bytearray(SIZE))
    buffer = over(log)
    for values in RECORDS[:before]:
        buffer.write(*values)
    memory, log.steps = bytes(log.memory), []
    for values in RECORDS[before : before + during]:
        buffer.write(*values)
    return memory, log.steps


def read(memory: View) -> Any:
    try:
        return over(memory).read()
    except ValueError:
        return None  # this reader has met a write in each buffer, and has read nothing before


@pytest.fixture
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double_buffer, "_TRIES", 1)


@pytest.mark.usefixtures("few_tries")
@pytest.mark.parametrize("in_order", [True, False], ids=["x86-64", "weaker than arm64"])
@pytest.mark.parametrize(("before", "during"), [(1, 1), (2, 1), (2, 2), (1, 3)])
def test_no_reader_returns_a_torn_record(before: int, during: int, in_order: bool) -> None:
    memory, steps = written(before, during)
    found = outcomes(memory, steps, read, in_order=in_order)
    assert found <= {*RECORDS[: before + during], None}
    assert {RECORDS[before - 1], RECORDS[before + during - 1]} <= found


@pytest.mark.usefixtures("few_tries")
def test_where_stores_arrive_in_order_the_generation_alone_refuses_torn_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(double_buffer, "crc32", lambda _: 0)
    memory, steps = written(2, 2)
    assert outcomes(memory, steps, read, in_order=True) <= {*RECORDS[:4], None}


@pytest.mark.usefixtures("few_tries")
def test_where_they_do_not_the_model_finds_torn_records_without_a_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double_buffer, "crc32", lambda _: 0)
    memory, steps = written(2, 1)
    assert not outcomes(memory, steps, read, in_order=False) <= {*RECORDS[:3], None}


def test_no_reader_returns_an_older_record_than_before_when_a_later_write_is_seen_first() -> None:
    memory, _ = written(1, 0)
    log = Log(bytearray(memory))
    over(log).write(*RECORDS[1])
    reader = over(log)
    assert reader.read() == RECORDS[1]
    assert log.memory[SIZE // 2 :] == memory[SIZE // 2 :]  # the other buffer holds the first record...
    log.memory[:8] = bytes(8)  # ...and the fourth one is already being written over the second
    assert reader.read() == RECORDS[1]


class SequenceLock:
    """How the rank's half was written before: `struct.pack_into` fills its range with zeros, then stores each field."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def write(self, first: int, second: int) -> None:
        self._count(1)
        self._memory.copy_in(8, b"\0\0")
        self._memory.store(8, bytes([first]))
        self._memory.store(9, bytes([second]))
        self._count(1)

    def read(self) -> tuple[int, int]:
        for _ in range(2):  # of a hundred times
            before = int.from_bytes(self._memory.load(0, 8), "little")
            values = self._memory.load(8, 1)[0], self._memory.load(9, 1)[0]
            if before % 2 == 0 and int.from_bytes(self._memory.load(0, 8), "little") == before:
                break
        return values

    def _count(self, more: int) -> None:
        sequence = int.from_bytes(self._memory.load(0, 8), "little")
        self._memory.store(0, bytes(8))
        self._memory.store(0, (sequence + more).to_bytes(8, "little"))


class NoSequence(SequenceLock):
    """How the agent's half was."""

    def _count(self, more: int) -> None:
        pass


@pytest.mark.parametrize("protocol", [SequenceLock, NoSequence])
def test_the_model_finds_the_torn_records_of_the_protocols_before(protocol: Callable[[Any], SequenceLock]) -> None:
    log = Log(bytearray(16))
    protocol(log).write(1, 10)
    memory, log.steps = bytes(log.memory), []
    protocol(log).write(2, 20)
    found = outcomes(memory, log.steps, lambda view: protocol(view).read(), in_order=True)
    assert {(0, 0), (2, 0)} <= found - {(1, 10), (2, 20)}


def test_a_reader_that_meets_a_write_in_each_try_returns_what_it_has_read_last() -> None:
    memory, steps = written(2, 2)
    log = Log(bytearray(memory))
    reader = over(log)
    assert reader.read() == RECORDS[1]
    for at in (0, SIZE // 2):
        log.memory[at : at + 8] = bytes(8)  # both are being written
    assert reader.read() == RECORDS[1]
    for step in steps:
        for address, data in step:
            log.store(address, data)
    assert reader.read() == RECORDS[3]


def test_a_memory_without_a_whole_record_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole record"):
        DoubleBuffer(memoryview(bytearray(64)), SMALL).read()


def real_record() -> tuple[bytearray, DoubleBuffer, list[tuple[Any, ...]]]:
    """(memory, double buffer of a rank's progress, records none of whose bytes are equal)."""
    memory = bytearray(_PROGRESS_AT.stop - _PROGRESS_AT.start)
    fields = struct.Struct(f"<{_PROGRESS}")
    records = [fields.unpack(bytes([n + 1]) * fields.size) for n in range(4)]
    return memory, DoubleBuffer(memoryview(memory), _PROGRESS), records


@pytest.mark.parametrize("backward", [False, True], ids=["first byte first", "last byte first"])
def test_after_a_writer_was_killed_at_any_store_readers_get_the_record_before_or_after(backward: bool) -> None:
    memory, buffer, records = real_record()
    buffer.write(*records[0])
    buffer.write(*records[1])
    before = bytes(memory)
    log = Log(memory)
    for number, each in enumerate(buffer._buffers):
        at = number * len(memory) // 2
        each.words, each.fields = Words(log, at), Bytes(log, at + 16, len(each.fields))  # type: ignore[assignment]
    buffer.write(*records[2])
    stores = [store for step in log.steps for store in (reversed(step) if backward else step)]
    assert len(stores) > 256
    found = []
    for killed_after in range(len(stores) + 1):
        left = bytearray(before)
        for address, data in stores[:killed_after]:
            left[address : address + len(data)] = data
        found.append(DoubleBuffer(memoryview(left), _PROGRESS).read())
        successor = DoubleBuffer(memoryview(left), _PROGRESS)
        successor.write(*records[3])
        assert successor.read() == records[3]
    assert found == [records[1]] * len(stores) + [records[2]]


@given(data=st.data())
def test_a_mixture_of_two_records_is_refused_by_the_checksum(data: st.DataObject) -> None:
    memory, buffer, records = real_record()
    buffer.write(*records[0])
    older = bytes(memory)
    buffer.write(*records[1])
    buffer.write(*records[2])
    half = len(memory) // 2
    stays_old = data.draw(st.sets(st.integers(half + 16, half + 16 + struct.calcsize(f"<{_PROGRESS}") - 1), min_size=1))
    for place in stays_old:
        memory[place] = older[place]
    assert buffer.read() == records[1]


def test_fields_that_the_writer_does_not_know_are_zero_and_others_are_ignored() -> None:
    memory = bytearray(128)
    DoubleBuffer(memoryview(memory), "qi").write(5, 6)
    assert DoubleBuffer(memoryview(memory), "qiqd").read() == (5, 6, 0, 0.0)
    DoubleBuffer(memoryview(memory), "qiqd").write(7, 8, 9, 1.0)
    assert DoubleBuffer(memoryview(memory), "qi").read() == (7, 8)


def test_a_value_that_does_not_fit_is_refused_and_the_record_stays() -> None:
    memory = bytearray(64)
    buffer = DoubleBuffer(memoryview(memory), SMALL)
    buffer.write(1, 10)
    before = bytes(memory)
    with pytest.raises(struct.error):
        buffer.write(2, 256)
    assert bytes(memory) == before
