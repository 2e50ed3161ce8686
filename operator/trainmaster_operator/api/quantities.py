"""Kubernetes quantities such as 4Gi or 500m: their form in a spec, and their conversion to numbers and back; and the
largest number of seconds in a spec."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import Field

SECONDS = 10**9
"""The largest value of a field in seconds, about thirty years. A clock can add it to any date without an overflow."""


_AMOUNT = r"[1-9][0-9]*(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?"
Quantity = Annotated[str, Field(max_length=32, pattern=f"^{_AMOUNT}$")]
"""An amount of memory as Kubernetes writes it."""
QuantityOrNone = Annotated[str, Field(max_length=32, pattern=f"^(0|{_AMOUNT})$")]

_FACTORS = {"m": 1e-3, "": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_FACTORS |= {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(m|[kMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")


def bytes_of(quantity: str) -> int | None:
    """Return a Kubernetes amount of memory, such as 4Gi, in bytes, rounded up. Return None if the text is no such
    amount."""
    return _parsed(quantity, 1)


def millis_of(quantity: str) -> int | None:
    """Return a Kubernetes amount of CPU, such as 500m, in thousandths of a core, rounded up. Return None if the text is
    no such amount."""
    return _parsed(quantity, 1000)


def _parsed(quantity: str, scale: int) -> int | None:
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        return None
    number, unit = match[1], match[2] or ""
    factor = float(f"1{unit}") if len(unit) > 1 and unit[0] in "eE" and unit[1:] != "i" else _FACTORS[unit]
    try:
        if isinstance(factor, int) and number.isdigit():
            return int(number) * factor * scale
        return math.ceil(round(float(number) * factor * scale, 6))
    except (OverflowError, ValueError):
        return None  # More than a float holds (1e999), or thousands of digits.


def quantity_of(size: int) -> str:
    """Return a number of bytes as a Kubernetes amount, with the largest binary unit that divides it: 1073741824 is
    1Gi."""
    for power, unit in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)
