"""What a model says of itself, so that it can be parallelized without knowing how.

A plan names submodules by their paths in the model; `*` stands for one component of a path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from torch import nn

from trainmaster.errors import ConfigError

Role = Literal[
    "vocabulary", "region", "summed_region", "column", "row", "head", "norm", "positions", "partial", "experts"
]
"""What tensor parallelism makes of a submodule:

vocabulary  an nn.Embedding: each rank has the rows of some tokens
region      what is split inside of it starts from the same input, which is gathered once, here
summed_region  the same, and what comes out of it is summed over the ranks
column      an nn.Linear whose outputs are split (heads of attention, the hidden width of an MLP)
row         an nn.Linear whose inputs are split so; its outputs are summed over the ranks
head        the nn.Linear to the vocabulary: each rank has the logits of some tokens
norm        works on the stream between regions, which sequence parallelism slices along the sequence
positions   see `models.layers.Positions`: whole, and added to the slice of the sequence that a rank has
partial     has whole parameters, of whose gradients each rank gets a summand: a norm of each head, a router
experts     see `models.experts.Experts`: the hidden width of each is split
"""


@dataclass(frozen=True)
class Plan:
    """`model.plan`. Whatever is left empty can't be parallelized that way, and is refused in a sentence."""

    blocks: str = ""
    """The nn.ModuleList of layers: units of sharding, of recomputation and of a pipeline's stages."""

    stem: tuple[str, ...] = ()
    """Submodules that only what comes before the blocks uses. For a pipeline."""

    tail: tuple[str, ...] = ()
    """Submodules that only what comes after the blocks uses. For a pipeline."""

    tensor: Mapping[str, Role] = field(default_factory=dict)
    """Roles by path."""

    attention: str = ""
    """Submodules with `forward(q, k, v)`, [B, H, T, K] each: causal attention, scaled by 1/sqrt(K)."""

    sequence_sums: str = ""
    """Submodules whose forward is called with sums over a sequence, and returns them: where each rank has a part of
    the sequence, those of the whole one."""

    auxiliary: str = ""
    """Submodules that are `layers.AuxiliaryLoss`."""

    experts: str = ""
    """Submodules that are experts, see `models.experts.Experts`."""


def plan_of(model: nn.Module) -> Plan:
    """The plan that a model declares; an empty one if it declares none."""
    plan = getattr(model, "plan", None)
    return plan if isinstance(plan, Plan) else Plan()


def named(model: nn.Module, pattern: str) -> Iterator[tuple[str, nn.Module]]:
    """The submodules whose path is like `pattern`."""
    if pattern:
        for path, module in model.named_modules():
            if _like(pattern).fullmatch(path):
                yield path, module


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Give a module a class of its own, with this `forward`; sharding may wrap that class again."""
    cls = type(module)
    module.__class__ = type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})


def replace_forwards(modules: Iterable[nn.Module], change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """The same for several, with what `change` makes of their forward: those of one class have one class again."""
    changed: dict[type[nn.Module], type[nn.Module]] = {}
    for module in modules:
        cls = type(module)
        if cls not in changed:
            replace_forward(module, change(cls.forward))
            changed[cls] = type(module)
        module.__class__ = changed[cls]


@lru_cache(maxsize=256)
def _like(pattern: str) -> re.Pattern[str]:
    return re.compile(r"[^.]+".join(map(re.escape, pattern.split("*"))))


def check(model: nn.Module) -> None:
    """A plan that names what isn't there is a mistake in the model's code. Raises ConfigError."""
    plan = plan_of(model)
    for pattern in (
        plan.blocks,
        plan.attention,
        plan.sequence_sums,
        plan.auxiliary,
        plan.experts,
        *plan.stem,
        *plan.tail,
        *plan.tensor,
    ):
        if pattern and not any(named(model, pattern)):
            raise ConfigError(f"the plan of model {type(model).__name__} names {pattern!r}, which it has not")
