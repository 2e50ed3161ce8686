"""Conversion of dataclasses to JSON and back, for all that agents, the operator and storage exchange.

`encode` writes all fields and `decode` ignores unknown keys, so that releases n and n-1 understand each other.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

PROTOCOL = 1

M = TypeVar("M")


class WireError(ValueError):
    """A message that cannot be decoded. Its text names the field that is wrong, and what is expected there."""


def encode(message: Any) -> bytes:
    """Return a message as JSON. NaN and infinity become strings, because JSON has no such numbers."""
    return json.dumps(_plain(message), separators=(",", ":"), allow_nan=False).encode()


def altered(message: M, **changes: Any) -> M:
    """Return a copy with these fields changed, as `dataclasses.replace` does, in a third of its time.

    The operator alters a directive for each of thousands of agents.
    """
    return type(message)(**{**vars(message), **changes})


def decode(cls: type[M], raw: bytes | str) -> M:
    """Return the message of class `cls` that `raw` contains. Unknown keys are ignored.

    The sender is not trusted. Raises WireError with the path of the first field that is wrong.
    """
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{cls.__name__}: not JSON: {error}") from None
    if isinstance(value, dict):
        protocol = value.get("protocol", PROTOCOL)
        if type(protocol) is not int or not PROTOCOL - 1 <= protocol <= PROTOCOL:
            raise WireError(f"{cls.__name__}.protocol: {_shown(protocol)} is not supported, {PROTOCOL} is")
    try:
        return typing.cast(M, _reader(typing.cast(Any, cls))(value))
    except _Wrong as wrong:
        raise WireError(f"{cls.__name__}{''.join(reversed(wrong.path))}: {wrong}") from None


_AS_IT_IS = frozenset((str, int, bool, type(None)))


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if kind is dict:
        return {str(k): _plain(v) for k, v in value.items()}
    if kind in (list, tuple):
        return [_plain(v) for v in value]
    if dataclasses.is_dataclass(kind):
        return {k: v if type(v) in _AS_IT_IS else _plain(v) for k, v in vars(value).items()}
    return value.value if isinstance(value, Enum) else value


_MOST = 2**63 - 1
_MOST_DEPTH = 16


class _Wrong(Exception):
    """A value of the wrong type. `path` leads to it, with the innermost key first."""

    def __init__(self, words: str, *path: str) -> None:
        super().__init__(words)
        self.path = list(path)


Reader = Callable[[Any], Any]


@functools.cache
def _reader(kind: Any) -> Reader:
    """Return a function that checks and converts a JSON value to `kind`.

    The function is built once for each type, because there are thousands of messages.
    """
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        (some,) = [k for k in typing.get_args(kind) if k is not type(None)]
        read = _reader(some)
        return lambda value: None if value is None else read(value)
    if origin is list:
        return _list_reader(_reader(typing.get_args(kind)[0]))
    if origin is dict:
        return _dict_reader(_reader(typing.get_args(kind)[1]))
    if kind is Any:
        return _read_any
    if dataclasses.is_dataclass(kind):
        return _record_reader(typing.cast(type, kind))
    if issubclass(kind, Enum):
        return _enum_reader(kind)
    return _SCALARS[kind]


def _list_reader(read: Reader) -> Reader:
    def read_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _Wrong(f"a list is expected, not {_shown(value)}")
        items: list[Any] = []
        try:
            for item in value:
                items.append(read(item))
        except _Wrong as wrong:
            wrong.path.append(f"[{len(items)}]")
            raise
        return items

    return read_list


def _dict_reader(read: Reader) -> Reader:
    def read_dict(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _Wrong(f"an object is expected, not {_shown(value)}")
        items = {}
        for key, item in value.items():
            try:
                items[_read_str(key)] = read(item)
            except _Wrong as wrong:
                wrong.path.append(f".{key:.80}")
                raise
        return items

    return read_dict


def _record_reader(cls: type) -> Reader:
    hints = typing.get_type_hints(cls)
    fields = [
        (f.name, _reader(hints[f.name]), f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING)
        for f in dataclasses.fields(cls)
    ]

    def read_record(value: Any) -> Any:
        if type(value) is not dict:
            raise _Wrong(f"an object is expected, not {_shown(value)}")
        known = {}
        for name, read, required in fields:
            if name in value:
                try:
                    known[name] = read(value[name])
                except _Wrong as wrong:
                    wrong.path.append(f".{name}")
                    raise
            elif required:
                raise _Wrong("is missing", f".{name}")
        return cls(**known)

    return read_record


def _enum_reader(kind: type[Enum]) -> Reader:
    def read_enum(value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError:
            raise _Wrong(f"{_shown(value)} is none of {', '.join(e.value for e in kind)}") from None

    return read_enum


def _read_float(value: Any) -> float:
    if type(value) is float or value in ("nan", "inf", "-inf"):
        return float(value)
    if type(value) is int and _fits(value):
        return float(value)
    raise _Wrong(f"float is expected, not {_shown(value)}")


def _read_int(value: Any) -> int:
    if type(value) is int and -_MOST - 1 <= value <= _MOST:
        return value
    raise _Wrong(f"int is expected, not {_shown(value)}")


def _read_bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _Wrong(f"bool is expected, not {_shown(value)}")


def _read_str(value: Any) -> str:
    if type(value) is not str:
        raise _Wrong(f"str is expected, not {_shown(value)}")
    if value.isascii():
        return value
    # Half a surrogate pair can't be written anywhere: words that hold one are kept, the half isn't.
    return value.encode(errors="replace").decode()


_SCALARS: dict[Any, Reader] = {float: _read_float, int: _read_int, bool: _read_bool, str: _read_str}


def _read_any(value: Any, depth: int = 0) -> Any:
    """Return a value of any type, checked for a nesting depth that a sender could use to exhaust the stack."""
    if depth > _MOST_DEPTH:
        raise _Wrong(f"is nested more than {_MOST_DEPTH} times")
    if type(value) is dict:
        return {_read_str(key): _read_any(item, depth + 1) for key, item in value.items()}
    if type(value) is list:
        return [_read_any(item, depth + 1) for item in value]
    read = _SCALARS.get(type(value))
    return value if read is None else read(value)


def _fits(value: int) -> bool:
    return -_MOST - 1 <= value <= _MOST


def _shown(value: Any) -> str:
    """Return the beginning of a value, for an error message."""
    if type(value) in (dict, list):
        return "an object" if type(value) is dict else "a list"
    return f"{value!r:.80}" if type(value) is not int or _fits(value) else "one of more than 64 bits"
