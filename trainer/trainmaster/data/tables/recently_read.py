"""Values that were read last, within a bound of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentlyRead(Generic[T]):
    """The values that were asked for last, with at most `most` units in all. The last one is kept in any case."""

    def __init__(self, most: int, size_of: Callable[[T], int]) -> None:
        self._most, self._size_of = most, size_of
        self._values: OrderedDict[int, T] = OrderedDict()
        self._total = 0

    def get(self, key: int, read: Callable[[int], T]) -> T:
        """Return the value of a key, which is read if it isn't there."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = read(key)
        self._total += self._size_of(value)
        while self._total > self._most and len(self._values) > 1:
            self._total -= self._size_of(self._values.popitem(last=False)[1])
        return value
