"""Values that are computed once in a pass, however many policies read them. A view never changes, so these values do
not change either.

`functools.cached_property` takes a lock at each access before Python 3.12, which costs more than most of these values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, TypeVar, overload

V = TypeVar("V")
T = TypeVar("T")


class attribute(Generic[V, T]):
    """A property that is computed when it is first read and is a plain attribute of the instance from then on."""

    def __init__(self, make: Callable[[V], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type[V], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[V]) -> attribute[V, T]: ...

    @overload
    def __get__(self, instance: V, owner: type[V]) -> T: ...

    def __get__(self, instance: V | None, owner: type[V]) -> T | attribute[V, T]:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._make(instance)
        return value


def once(make: Callable[[V], T]) -> Callable[[V], T]:
    """Return a function that computes `make(view)` at its first call with a view and returns the same result from then
    on.

    The result is stored in the view, so callers must not change it.
    """
    place = f"{make.__module__}.{make.__qualname__}"

    @wraps(make)
    def made(view: V) -> T:
        kept: dict[str, Any] = view.__dict__
        if place not in kept:
            kept[place] = make(view)
        value: T = kept[place]
        return value

    return made
