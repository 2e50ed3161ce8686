"""The parameters of a model, and how they are split. It imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    name: str
    shape: tuple[int, ...]
    split: int | None = None  # the dim that tensor parallelism splits
    is_expert: bool = False  # dim 0 counts experts, which are dealt out

    def local(self, tp: int, ep: int) -> tuple[int, ...]:
        """Return the shape of the part that tensor and expert parallelism leave to a rank."""
        shape = list(self.shape)
        if self.is_expert:
            shape[0] //= ep
        if self.split is not None:
            shape[self.split] //= tp
        return tuple(shape)


@dataclass(frozen=True)
class Inventory:
    """The parameters of a model whose blocks are all of the same kind."""

    stem: tuple[Parameter, ...]
    block: tuple[Parameter, ...]
    tail: tuple[Parameter, ...]
    layers: int

    @property
    def size(self) -> int:
        """Return the number of parameters of the whole model."""
        return elements(self.stem) + self.layers * elements(self.block) + elements(self.tail)


def elements(parameters: tuple[Parameter, ...]) -> int:
    return sum(math.prod(p.shape) for p in parameters)
