"""The memory tier of checkpoints: its fields in a job's spec, and the conversion of amounts of memory to numbers."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import Field

from trainmaster.contract.config import Strict

_AMOUNT = r"[1-9][0-9]*(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?"
Quantity = Annotated[str, Field(max_length=32, pattern=f"^{_AMOUNT}$")]
"""An amount of memory as Kubernetes writes it."""
QuantityOrNone = Annotated[str, Field(max_length=32, pattern=f"^(0|{_AMOUNT})$")]

_FACTORS = {"m": 1e-3, "": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_FACTORS |= {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(m|[kMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")


class RamSpec(Strict):
    """Checkpoints in the memory of the job's own pods: fast to write, fast to read, gone with the pod."""

    every: int | None = Field(
        None,
        ge=0,
        le=10**9,
        description="Number of steps between two checkpoints in memory. 0: state is saved to memory only when another "
        "rank has failed. Default: the number of steps with which saving takes at most 1 % of the time.",
    )
    peers: int = Field(
        1,
        ge=0,
        le=1,
        description="Number of copies of each pod's checkpoints that are kept in pods on other nodes. With 1 the loss "
        "of one pod loses no saved state; with 0 the checkpoints in memory are lost with their pod. "
        "Default: 1.",
    )
    limit: QuantityOrNone | None = Field(
        None,
        description="Memory of each pod for checkpoints, as a Kubernetes quantity such as 4Gi. It must hold the pod's "
        "own checkpoints and the copies for another pod, each up to twice the size of the saved state. It "
        "is added to the memory request and limit of the first container. 0 means that no checkpoints are "
        "kept in memory; then every and peers must not be set. Default: 1Gi for each rank of the pod.",
    )


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
    if isinstance(factor, int) and number.isdigit():
        return int(number) * factor * scale
    return math.ceil(round(float(number) * factor * scale, 6))


def quantity_of(size: int) -> str:
    """Return a number of bytes as a Kubernetes amount, with the largest binary unit that divides it: 1073741824 is
    1Gi."""
    for power, unit in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)
