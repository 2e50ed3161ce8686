"""Which tensors PowerSGD compresses, and which it sends in full: from shapes alone. It imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence


def matrix(shape: Sequence[int], rank: int) -> tuple[int, int] | None:
    """Return (rows, columns) of the matrix that PowerSGD makes of a tensor.

    Return None if its two factors would have more than half of its elements.
    """
    size = math.prod(shape)
    ways = [(math.prod(shape[:i]), math.prod(shape[i:])) for i in range(1, len(shape))]
    rows, columns = min(ways, key=sum, default=(1, size))
    return (rows, columns) if 2 * rank * (rows + columns) <= size else None
