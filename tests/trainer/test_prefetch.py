"""Reading ahead: the same batches, read while a step computes, and errors where they belong."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from trainmaster.data import Batch, prefetch
from trainmaster.data.prefetch import Prefetch
from trainmaster.errors import DataError

SLOTS = [range(0, 2), range(2, 4)]
LIMIT_S = 20.0


class Numbers:
    """A source of its own positions. Notes who read what, and waits where it is told to."""

    def __init__(self) -> None:
        self.read: list[tuple[int, range, str]] = []
        self.waits_for: threading.Event | None = None
        self.broken: int | None = None

    def batch(self, consumed: int, slots: range) -> Batch:
        thread = "ahead" if threading.current_thread().name.startswith("prefetch") else "here"
        if thread == "ahead" and self.waits_for is not None:
            assert self.waits_for.wait(LIMIT_S)
        if consumed == self.broken:
            raise DataError(f"no samples at {consumed}")
        self.read.append((consumed, slots, thread))
        numbers = torch.tensor([consumed + slot for slot in slots])
        return Batch(numbers, numbers + 1, len(slots))


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Numbers:
    monkeypatch.setattr(prefetch, "WORTH_S", 0.0)
    return Numbers()


def step(ahead: Prefetch, consumed: int) -> list[list[int]]:
    return [batch.inputs.tolist() for batch in ahead.batches(consumed, SLOTS, consumed + 4)]


def test_each_step_gets_its_own_samples_wherever_they_were_read(numbers: Any) -> None:
    ahead = Prefetch(numbers)
    for consumed in (0, 4, 8, 40, 44):  # 40: another step than was expected
        assert step(ahead, consumed) == [[consumed, consumed + 1], [consumed + 2, consumed + 3]]
    where = {(consumed, slots.start): thread for consumed, slots, thread in numbers.read}
    assert [where[consumed, 0] for consumed in (0, 4, 8, 40, 44)] == ["here", "ahead", "ahead", "here", "ahead"]


def test_the_next_step_is_read_while_the_last_micro_batch_of_this_one_computes(numbers: Any) -> None:
    numbers.waits_for = threading.Event()
    batches = Prefetch(numbers).batches(0, SLOTS, 4)
    assert [next(batches).valid_tokens, next(batches).valid_tokens] == [2, 2]
    numbers.waits_for.set()  # from within the step: nobody has asked for more batches
    patience = time.monotonic() + LIMIT_S
    while len(numbers.read) < 4 and time.monotonic() < patience:
        time.sleep(0.01)
    assert [consumed for consumed, _, _ in numbers.read] == [0, 0, 4, 4]


def test_an_error_belongs_to_the_step_whose_samples_cannot_be_read(numbers: Any) -> None:
    numbers.broken = 4
    ahead = Prefetch(numbers)
    step(ahead, 0)
    with pytest.raises(DataError, match="no samples at 4"):
        step(ahead, 4)


def test_what_is_read_in_no_time_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "WORTH_S", float("inf"))
    source: Any = Numbers()
    ahead = Prefetch(source)
    for consumed in (0, 4, 8):
        step(ahead, consumed)
    assert {thread for _, _, thread in source.read} == {"here"}
