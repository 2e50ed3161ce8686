"""What the data and the layout must know of a model without building it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Objective = Literal["NextToken", "MaskedTokens", "Class"]
"""What a model is trained to predict: the next token, the masked tokens, or the class of an image."""


@dataclass(frozen=True)
class Facts:
    """Facts about a model. `axes` are the axes of the mesh, other than data parallelism, along which it can be
    divided. None: those that `allowed_parallelism` allows by default."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    hidden: int  # width of an MLP
    vocabulary: int
    context: int  # tokens of a sequence
    experts: int = 0
    objective: Objective = "NextToken"
    mask_token: int | None = None  # what stands where a token was masked
    image: tuple[int, ...] = ()  # [C, H, W], of a model of images; `vocabulary` are its classes then
    known: bool = True  # False: of a model of one's own, whose sizes only it knows
    axes: frozenset[str] | None = None
    reversible: bool = False  # blocks of two streams, whose inputs follow from their outputs
