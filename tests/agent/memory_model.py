"""Shared memory between one writer and one reader, with all that the hardware may show to the reader.

The writer runs first and leaves a log of steps. A step is one operation of the program: a store of a word, or a copy
whose bytes may arrive in any order. Then the reader runs once for each choice of what its loads may return:

- in order (x86-64): all loads see one time, which only goes forward. Steps arrive one after the other.
- not in order (weaker than arm64): each word and each byte has a time of its own, which only goes forward.

A load goes forward only as far as it needs for the value that it returns. Later loads can still go further, so no
behaviour is lost.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Step = list[tuple[int, bytes]]  # stores, (address, data), that arrive in any order
Versions = dict[int, list[tuple[int, bytes]]]  # address -> (time, data)


@dataclass
class Log:
    """The writer's side: memory that remembers what was stored into it."""

    memory: bytearray
    steps: list[Step] = field(default_factory=list)

    def store(self, address: int, data: bytes) -> None:
        self._do([(address, data)])

    def copy_in(self, address: int, data: bytes) -> None:
        self._do([(address + i, data[i : i + 1]) for i in range(len(data))])

    def load(self, address: int, size: int) -> bytes:
        return bytes(self.memory[address : address + size])

    copy_out = load

    def _do(self, step: Step) -> None:
        self.steps.append(step)
        for address, data in step:
            self.memory[address : address + len(data)] = data


class Choices:
    """Goes through all sequences of choices, each made while the program runs: `for _ in choices: … choices.of(n)`."""

    def __init__(self) -> None:
        self._made: list[tuple[int, int]] = []  # (chosen, options)
        self._next = 0

    def of(self, options: int) -> int:
        if self._next == len(self._made):
            self._made.append((0, options))
        self._next += 1
        return self._made[self._next - 1][0]

    def __iter__(self) -> Iterator[None]:
        while True:
            self._next = 0
            yield
            while self._made and self._made[-1][0] + 1 == self._made[-1][1]:
                self._made.pop()
            if not self._made:
                return
            chosen, options = self._made.pop()
            self._made.append((chosen + 1, options))


class View:
    """The reader's side. `versions`: of each place the times at which data arrives there, and the data."""

    def __init__(self, memory: bytes, versions: Versions, choices: Choices, *, in_order: bool) -> None:
        self._memory, self._versions, self._choices, self._in_order = memory, versions, choices, in_order
        self._now: dict[int, int] = defaultdict(int)

    def load(self, address: int, size: int) -> bytes:
        clock = 0 if self._in_order else address
        now = self._now[clock]
        data = self._memory[address : address + size]
        later = []
        for version in self._versions.get(address, ()):
            if version[0] <= now:
                data = version[1]
            else:
                later.append(version)
        chosen = self._choices.of(len(later) + 1) if later else 0
        if chosen:
            self._now[clock], data = later[chosen - 1]
        return data

    def copy_out(self, address: int, size: int) -> bytes:
        """A copy byte by byte. Its order need not be chosen where the stores arrive in each possible order."""
        return b"".join(self.load(place, 1) for place in range(address, address + size))


class Words:
    """Stands for a memoryview of words of 8 bytes."""

    def __init__(self, memory: Any, at: int) -> None:
        self._memory, self._at = memory, at

    def __getitem__(self, index: int) -> int:
        return int.from_bytes(self._memory.load(self._at + 8 * index, 8), "little")

    def __setitem__(self, index: int, value: int) -> None:
        self._memory.store(self._at + 8 * index, value.to_bytes(8, "little"))


class Bytes:
    """Stands for a memoryview of bytes."""

    def __init__(self, memory: Any, at: int, size: int) -> None:
        self._memory, self._at, self._size = memory, at, size

    def tobytes(self) -> bytes:
        found: bytes = self._memory.copy_out(self._at, self._size)
        return found

    def __setitem__(self, whole: slice, data: bytes) -> None:
        assert whole == slice(None)
        assert len(data) == self._size
        self._memory.copy_in(self._at, data)


def arrivals(steps: Sequence[Step]) -> Iterator[list[tuple[int, bytes]]]:
    """Return the stores of these steps in each order in which they can arrive one step after the other."""
    for orders in itertools.product(*(itertools.permutations(step) for step in steps)):
        yield [store for order in orders for store in order]


def outcomes(memory: bytes, steps: Sequence[Step], read: Callable[[View], Any], *, in_order: bool) -> set[Any]:
    """Return all that `read` can return while `steps` are made to `memory`."""
    found = set()
    # Out of order each place is on its own, and one order of arrival stands for all.
    for stores in arrivals(steps) if in_order else itertools.islice(arrivals(steps), 1):
        versions: Versions = defaultdict(list)
        for time, (address, data) in enumerate(stores, start=1):
            versions[address].append((time, data))
        choices = Choices()
        for _ in choices:
            found.add(read(View(memory, versions, choices, in_order=in_order)))
    return found
