"""A number with its noun. Commands that start fast use it too, so it imports nothing."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 rank, 2 ranks."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
