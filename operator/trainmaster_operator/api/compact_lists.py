"""Compact texts for lists of numbers in a job's status: ranges, and values with repetitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache


def pack_ranges(numbers: Iterable[int]) -> str:
    """Return numbers, in their order, as ranges: [0, 1, 2, 5, 4] -> "0-2,5,4". This keeps the list of a round's members
    short."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def unpack_ranges(text: str) -> list[int]:
    """Return the numbers that `pack_ranges` packed. Raise ValueError for any other text."""
    return list(_ranges(text))


def pack_counts(counts: Sequence[int]) -> str:
    """Return a list in which neighbours are mostly equal as values with repetitions: [0, 0, 0, 2] -> "0*3,2"."""
    parts: list[str] = []
    i = 0
    while i < len(counts):
        j = i
        while j < len(counts) and counts[j] == counts[i]:
            j += 1
        parts.append(f"{counts[i]}*{j - i}" if j - i > 1 else str(counts[i]))
        i = j
    return ",".join(parts)


def unpack_counts(text: str) -> list[int]:
    """Return the list that `pack_counts` packed. Raise ValueError for any other text."""
    return list(_counts(text))


@lru_cache(maxsize=1024)
def _ranges(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in text.split(",") if text else []:
        first, dash, last = part.partition("-")
        a = int(first)
        b = int(last) if dash else a
        if b < a:
            raise ValueError(f"range {part!r} runs backwards")
        numbers.extend(range(a, b + 1))
    return tuple(numbers)


@lru_cache(maxsize=1024)
def _counts(text: str) -> tuple[int, ...]:
    counts: list[int] = []
    for part in text.split(",") if text else []:
        value, star, times = part.partition("*")
        counts.extend([int(value)] * (int(times) if star else 1))
    return tuple(counts)
