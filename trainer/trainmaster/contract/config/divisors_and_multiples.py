"""Divisors and multiples of whole numbers, for what is divided among ranks and for sentences about it."""

from __future__ import annotations

import math
from collections.abc import Sequence


def divisors(number: int) -> list[int]:
    """Return all divisors of `number` in ascending order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({n for low in small for n in (low, number // low)})


def multiples_near(number: int, of: int) -> tuple[int, int]:
    """Return the multiples of `of` next below and above `number`, which is none. If it is below `of`, return the first
    two: (10, 4) gives 8 and 12, and (3, 4) gives 4 and 8."""
    below = max(of, number // of * of)
    return below, below + of


def multiples_near_words(number: int, of: int) -> str:
    """Return a clause that names these multiples, as the end of a sentence: "8 and 12 are"."""
    below, above = multiples_near(number, of)
    return f"{below} and {above} are"


def one_of(numbers: Sequence[int]) -> str:
    """Return a choice of at least one number in words: "1, 2 or 3"."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
