"""Saves to an agent's memory whose files a thread has made ready. Calls are counted, and nothing is timed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from trainmaster.checkpoint.files.memory_tier import RamFolder, checksum_of
from trainmaster.checkpoint.memory import mapped_file, memory_saver
from trainmaster.checkpoint.memory.memory_saver import RamSaver
from trainmaster.checkpoint.memory.memory_snapshot import LocalState

WAIT_S = 20.0
BUDGET = 1 << 28
PREPARES = "ram-files"


class Allocations:
    """Who allocates files, by the names of threads. `before` is called with the number of the file, from 0."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.before: Callable[[int], None] = lambda number: None
        self._allocate = os.posix_fallocate

    def __call__(self, fd: int, offset: int, size: int) -> None:
        self.threads.append(threading.current_thread().name)
        self.before(len(self.threads) - 1)
        self._allocate(fd, offset, size)


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> Allocations:
    found = Allocations()
    monkeypatch.setattr(os, "posix_fallocate", found)
    monkeypatch.setattr(memory_saver, "PREPARED_FROM", 1)
    return found


@pytest.fixture
def populated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose pages have been mapped."""
    found: list[str] = []
    populate = mapped_file.MappedFile.populate

    def noted(slot: mapped_file.MappedFile, stopped: Callable[[], bool]) -> None:
        found.append(slot.path.name)
        populate(slot, stopped)

    monkeypatch.setattr(mapped_file.MappedFile, "populate", noted)
    return found


class Rank:
    """A rank that trains a small model."""

    def __init__(
        self, root: Path, round: int = 1, resumed: tuple[int, int] | None = None, budget: int = BUDGET
    ) -> None:
        self.model = nn.Linear(64, 64)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.folder, self.events, self.step = RamFolder(root, budget), list[str](), resumed[0] if resumed else 0
        state = LocalState({"model": self.model, "optimizer": self.optimizer}, 0)
        self.saver = RamSaver(
            self.folder,
            state,
            rank=0,
            world_size=1,
            round=round,
            resumed=resumed,
            say=lambda reason, message: self.events.append(f"{reason}: {message}"),
        )
        self.boundary()

    def boundary(self) -> None:
        self.saver.state.boundary()
        self.saver.prepare()

    def train(self) -> None:
        self.model(torch.ones(1, 64)).sum().backward()
        self.optimizer.step()
        self.step += 1
        self.boundary()

    def save(self, **common: str) -> bool:
        saved = self.saver.save(self.step, common)
        assert self.saver.settle(WAIT_S)
        return saved

    def hidden(self) -> list[str]:
        return sorted(path.name for path in self.folder.root.glob("step-*/.*"))

    def prepared(self) -> None:
        """Wait until the thread that prepares files has ended."""
        for thread in threading.enumerate():
            if thread.name == PREPARES:
                thread.join(WAIT_S)
                assert not thread.is_alive()

    def check(self) -> None:
        """Every file must match its receipt."""
        for name in self.folder.names():
            with self.folder.reading(*name) as file:
                assert checksum_of(file) == self.folder.receipt(*name).file.checksum


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    found = threading.Event()
    yield found
    found.set()


def test_the_first_two_saves_find_their_files_allocated(tmp_path: Path, allocations: Allocations) -> None:
    rank = Rank(tmp_path)
    assert not allocations.threads, "before a step, others may resume from what is there"
    rank.train()
    rank.prepared()
    assert len(rank.hidden()) == 2
    for _ in range(3):
        assert rank.save(), rank.events
        rank.train()
    assert allocations.threads == [PREPARES] * 2
    assert rank.folder.names() == [(3, 1, 0), (2, 1, 0)]
    assert rank.hidden() == []
    rank.check()


def test_a_small_state_is_not_prepared(
    tmp_path: Path, allocations: Allocations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_saver, "PREPARED_FROM", 1 << 20)
    rank = Rank(tmp_path)
    rank.train()
    assert rank.save()
    assert allocations.threads == [threading.current_thread().name]


def test_a_save_uses_the_first_file_while_the_second_is_being_made(
    tmp_path: Path, allocations: Allocations, gate: threading.Event
) -> None:
    allocations.before = lambda number: None if number == 0 else assert_opened(gate)
    rank = Rank(tmp_path)
    rank.train()
    assert rank.save()
    assert not gate.is_set()
    assert rank.folder.names() == [(1, 1, 0)]
    gate.set()
    rank.train()
    assert rank.save()
    assert allocations.threads == [PREPARES] * 2
    rank.check()


def assert_opened(gate: threading.Event) -> None:
    if threading.current_thread().name == PREPARES:
        assert gate.wait(WAIT_S)


def test_a_save_waits_for_the_file_that_is_being_made(
    tmp_path: Path, allocations: Allocations, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocations.before = lambda number: assert_opened(gate)
    rank = Rank(tmp_path)
    rank.train()
    saver, wait = rank.saver, rank.saver._await_prepared
    begun = threading.Event()

    def noted(size: int) -> None:
        begun.set()
        wait(size)

    monkeypatch.setattr(saver, "_await_prepared", noted)
    saving = threading.Thread(target=rank.save, name="saves")
    saving.start()
    assert begun.wait(WAIT_S)
    gate.set()
    saving.join(WAIT_S)
    rank.prepared()
    assert allocations.threads == [PREPARES] * 2
    assert rank.folder.names() == [(1, 1, 0)]


def test_without_room_the_save_ends_the_tier_with_the_same_words_and_leaves_no_file(
    tmp_path: Path, allocations: Allocations
) -> None:
    rank = Rank(tmp_path, budget=100 << 10)
    rank.train()
    rank.prepared()
    assert (rank.hidden(), rank.events) == ([], [])
    assert not rank.save()
    (event,) = rank.events
    assert event.startswith("RamCheckpointsOff: no checkpoints in memory: they need ")
    assert "but spec.checkpoint.ram.limit is" in event
    assert (rank.folder.used(), allocations.threads) == (0, [])


def test_nothing_is_prepared_if_only_some_files_of_the_pod_fit(tmp_path: Path, allocations: Allocations) -> None:
    """Otherwise the rank that comes first would take the room of another rank's only file."""
    rank = Rank(tmp_path, budget=200 << 10)
    rank.train()
    rank.prepared()
    assert (rank.hidden(), rank.events, allocations.threads) == ([], [], [])
    assert rank.save(), "one file fits"
    assert len(allocations.threads) == 1


def test_a_full_tmpfs_is_told_by_the_save_that_needs_the_file(tmp_path: Path, allocations: Allocations) -> None:
    def full(number: int) -> None:
        if number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    allocations.before = full
    rank = Rank(tmp_path)
    rank.train()
    rank.prepared()
    assert len(rank.hidden()) == 1, "the file that could not be allocated is gone"
    assert rank.save()
    rank.train()
    assert rank.events == []
    assert not rank.save()
    (event,) = rank.events
    assert event.startswith("RamCheckpointsOff: no checkpoints in memory: a file of ")
    assert rank.folder.names() == [(1, 1, 0)]
    assert rank.hidden() == []
    rank.check()


def test_inherited_files_are_mapped_and_keep_their_content(
    tmp_path: Path, allocations: Allocations, populated: list[str]
) -> None:
    first = Rank(tmp_path)
    for _ in range(2):
        first.train()
        assert first.save()
    first.prepared()
    populated.clear()
    allocations.threads.clear()
    before = {name: first.folder.path(*name).read_bytes() for name in first.folder.names()}
    files = {path.stat().st_ino for path in tmp_path.glob("step-*/rank-*")}
    second = Rank(tmp_path, round=2, resumed=(2, 1))
    assert populated == [], "before a step, others may resume from what is there"
    second.train()
    second.prepared()
    assert populated == ["rank-00000.safetensors"] * 2
    assert {name: second.folder.path(*name).read_bytes() for name in second.folder.names()} == before
    assert second.save()
    assert second.folder.names() == [(3, 2, 0), (2, 1, 0)], "what it resumed from is kept"
    assert {path.stat().st_ino for path in tmp_path.glob("step-*/rank-*")} == files
    assert allocations.threads == []
    second.check()


def test_files_of_a_killed_rank_that_no_save_has_used_are_swept(tmp_path: Path, allocations: Allocations) -> None:
    path = mapped_file.prepared_path(RamFolder(tmp_path, BUDGET), 0, 1, 7)  # no rank 7 comes again
    mapped_file.make(path, 4096).close()
    used = mapped_file.make(mapped_file.prepared_path(RamFolder(tmp_path, BUDGET), 0, 1, 8), 4096)
    rank = Rank(tmp_path, round=2)
    rank.train()
    rank.prepared()
    assert not path.exists()
    assert used.path.exists(), "rank 8 holds it"


def test_prepared_files_of_another_size_are_made_again(tmp_path: Path, allocations: Allocations) -> None:
    rank = Rank(tmp_path)
    rank.train()
    rank.prepared()
    assert rank.save(words="x" * (100 << 10)), rank.events
    assert rank.hidden() == []
    assert allocations.threads == [PREPARES, PREPARES, threading.current_thread().name]
    rank.train()
    assert rank.save(words="x" * (100 << 10))
    assert rank.folder.names() == [(2, 1, 0), (1, 1, 0)]
    rank.check()
