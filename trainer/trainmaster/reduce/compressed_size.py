"""The bytes that compressed gradients send and keep, from shapes alone. It imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainmaster.contract.config import CompressionConfig
from trainmaster.reduce.power_sgd_threshold import matrix

CHUNK = 1 << 22  # elements among which TopK chooses: few enough for 32-bit positions, and for the memory that takes
WIDTH = 4  # bytes of an element


def of_sum(size: int, ranks: int) -> int:
    """Return the bytes that a rank sends to sum `size` bytes over a ring.

    Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009.
    """
    return math.ceil(2 * size * (ranks - 1) / ranks)


def of_gather(size: int, ranks: int) -> int:
    """Return the bytes that a rank sends so that all ranks get the `size` bytes of each rank."""
    return (ranks - 1) * size


def whole_parts(elements: int, ranks: int) -> int:
    """Return the smallest number of elements, at least `elements`, that is a multiple of `ranks`."""
    return -(-elements // ranks) * ranks


def chosen(elements: int, share: float) -> int:
    """Return how many of `elements` elements TopK sends."""
    whole, rest = divmod(elements, CHUNK)
    return whole * math.ceil(share * CHUNK) + math.ceil(share * rest)


def sent(config: CompressionConfig, shapes: Sequence[Sequence[int]], ranks: int) -> int:
    """Return the bytes that a rank sends in a step for gradients of these shapes."""
    elements, marks = sum(map(math.prod, shapes)), len(shapes)
    if config.method == "TopK":
        return of_gather((2 * chosen(elements, config.share_or_default) + marks) * WIDTH, ranks)
    if config.method != "PowerSGD":
        return of_sum(whole_parts(elements + marks, ranks) * 2, ranks)
    rank = config.rank_or_default
    found = [(shape, matrix(shape, rank)) for shape in shapes]
    first = sum(math.prod(shape) if split is None else split[0] * rank for shape, split in found)
    second = sum(split[1] * rank for _, split in found if split is not None)
    return of_sum((first + marks) * WIDTH, ranks) + of_sum(second * WIDTH, ranks)


def saved(config: CompressionConfig, shapes: Sequence[Sequence[int]]) -> int:
    """Return the bytes that a rank adds to its checkpoint: what was not sent, and PowerSGD's factors."""
    return kept(config, shapes) - sum(map(math.prod, shapes)) * WIDTH


def kept(config: CompressionConfig, shapes: Sequence[Sequence[int]]) -> int:
    """Return the bytes that are kept between two steps.

    A buffer as large as the gradients holds what is sent; another one holds what was not sent.
    """
    elements = sum(map(math.prod, shapes))
    if not config.keeps_error:
        return elements * WIDTH
    found = [matrix(shape, config.rank_or_default) for shape in shapes] if config.method == "PowerSGD" else []
    return (2 * elements + sum(split[1] * config.rank_or_default for split in found if split is not None)) * WIDTH
