"""What a model declares about its parts, so that it can be parallelized without knowledge of its code.

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
"""What tensor parallelism does with a submodule; `Plan.tensor` describes each role."""


@dataclass(frozen=True)
class Plan:
    """What a model says about its parts so that it can be divided among ranks: the attribute `plan` of the model.

    Submodules are named by their paths in the model; `*` stands for one component of a path. If a field is empty, the
    model cannot be divided in the way that needs the field, and a job that asks for it is refused.
    """

    blocks: str = ""
    """The nn.ModuleList of layers. Each layer is a unit of sharding, of recomputation and of a pipeline's stages."""

    stem: tuple[str, ...] = ()
    """Submodules that are used only before the blocks. A pipeline needs them."""

    tail: tuple[str, ...] = ()
    """Submodules that are used only after the blocks. A pipeline needs them."""

    tensor: Mapping[str, Role] = field(default_factory=dict)
    """The role of each submodule in tensor parallelism, by its path.

    - `vocabulary`: an nn.Embedding. Each rank has the rows of some tokens.
    - `region`: a part whose matrices are split and start from the same input, which is gathered once, here.
    - `summed_region`: the same, and its output is summed over the ranks.
    - `column`: an nn.Linear whose outputs are split, such as heads of attention or the hidden width of an MLP.
    - `row`: an nn.Linear whose inputs are split; its outputs are summed over the ranks.
    - `head`: the nn.Linear to the vocabulary. Each rank has the logits of some tokens.
    - `norm`: works between regions, on the stream that is sliced along the sequence.
    - `positions`: a `models.layers.Positions`. It is whole, and added to the slice of the sequence that a rank has.
    - `partial`: has whole parameters, and each rank computes a summand of their gradients: a norm of each head, or a
      router.
    - `experts`: a `models.experts.Experts`. The hidden width of each expert is split.
    """

    attention: str = ""
    """Submodules with `forward(q, k, v)`, each of shape [B, H, T, K], that compute causal attention, scaled by
    1/sqrt(K)."""

    sequence_sums: str = ""
    """Submodules whose forward takes sums over a sequence and returns them. If each rank has a part of the sequence,
    they return the sums over the whole sequence."""

    auxiliary: str = ""
    """Submodules that are a `models.layers.AuxiliaryLoss`."""

    experts: str = ""
    """Submodules that are a `models.experts.Experts`."""


def plan_of(model: nn.Module) -> Plan:
    """Return the plan that a model declares, or an empty plan if it declares none."""
    plan = getattr(model, "plan", None)
    return plan if isinstance(plan, Plan) else Plan()


def named(model: nn.Module, pattern: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield (path, module) of the submodules whose paths match `pattern`."""
    if pattern:
        for path, module in model.named_modules():
            if _like(pattern).fullmatch(path):
                yield path, module


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Give a module a class of its own with this `forward`. Sharding may derive another class from it."""
    cls = type(module)
    module.__class__ = type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})


def replace_forwards(modules: Iterable[nn.Module], change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the forward of each module by what `change` returns for it. Modules of one class get one new class."""
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
    """Raise ConfigError if the model's plan names a submodule that does not exist, which is a mistake in its code."""
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
            raise ConfigError(
                f"the plan of model {type(model).__name__} names {pattern!r}, but the model has no such submodule"
            )
