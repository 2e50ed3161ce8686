"""Divisors and multiples of numbers, for what is dealt out to ranks and for sentences about it."""

from __future__ import annotations

import math


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({n for low in small for n in (low, number // low)})


def multiples_near(number: int, of: int) -> str:
    """The multiples of `of` next to `number`, which isn't one: the end of a sentence about what would divide."""
    below = number // of * of
    return f"{below} and {below + of} would" if below else f"{of} would be the smallest"
