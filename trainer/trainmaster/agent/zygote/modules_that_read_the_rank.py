"""Modules that keep the number of their rank from their import: a fork lets them read it again.

A module that reads a variable of its rank at its import can't be imported for other ranks, and nothing that imports it
can. These few do nothing else with it than keep it, at a place that is known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any


def _lightning(module: Any) -> None:
    module.rank_zero_only.rank = module._get_rank() or 0


def _torchmetrics(module: Any) -> None:
    module.rank_zero_only.rank = int(os.environ.get("LOCAL_RANK", 0))


_READ_AGAIN: dict[str, Callable[[Any], None]] = {
    "lightning.fabric.utilities.rank_zero": _lightning,
    "lightning_fabric.utilities.rank_zero": _lightning,  # of the package pytorch-lightning
    "torchmetrics.utilities.prints": _torchmetrics,
}

KNOWN: Collection[str] = frozenset(_READ_AGAIN)


def read_again(modules: Mapping[str, ModuleType]) -> None:
    """Let those of `modules` that are known read the variables of this process.

    Raises an exception of any kind if one of them keeps its rank in another way than is known.
    """
    for name in _READ_AGAIN.keys() & modules.keys():
        _READ_AGAIN[name](modules[name])
