"""Ranges [first, end) of the numbers of samples, as those that training leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def merged(ranges: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Return ranges [first, end) in ascending order: ranges that overlap or touch are joined, and empty ones left
    out."""
    result: list[tuple[int, int]] = []
    for first, end in sorted((r[0], r[1]) for r in ranges if r[0] < r[1]):
        if result and first <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((first, end))
    return result
