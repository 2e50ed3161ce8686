"""Divisors and multiples of whole numbers, for what is divided among ranks and for sentences about it."""

from __future__ import annotations

import math


def divisors(number: int) -> list[int]:
    """Return all divisors of `number` in ascending order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({n for low in small for n in (low, number // low)})


def multiples_near(number: int, of: int) -> str:
    """Return a clause that names the multiples of `of` next below and above `number`, as the end of a sentence.

    `number` is not a multiple of `of`. For example, (10, 4) gives "8 and 12 are", and (3, 4) gives "4 and 8 are".
    """
    below = max(of, number // of * of)
    return f"{below} and {below + of} are"
