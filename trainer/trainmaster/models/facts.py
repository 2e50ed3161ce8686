"""What of a model is dealt out to ranks: known without building it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What of a model is dealt out to ranks."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    hidden: int  # width of an MLP
    vocabulary: int
    context: int  # tokens of a sequence
    experts: int = 0
