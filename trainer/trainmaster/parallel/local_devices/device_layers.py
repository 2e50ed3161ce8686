"""Layers on several devices of one process: model parallelism in its plain form, without micro-batches.

One device computes at a time, so this spares memory and no time; a pipeline over ranks does both. Among ranks the same
is a pipeline of one micro-batch (schedule GPipe).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from trainmaster.errors import ConfigError
from trainmaster.parallel.model_plan import Plan, plan_of, replace_forward
from trainmaster.parallel.stages.partition import costs, partition


def apply(model: nn.Module, devices: Sequence[torch.device], balance: str, time: int) -> list[range]:
    """Move consecutive blocks of `model` to each device; the stem is on the first, the tail on the last.

    Activations follow, forward and backward: the model takes tokens from any device and leaves its output on the last.
    Returns the blocks of each device. Raises ConfigError before anything has moved.
    """
    plan = plan_of(model)
    if not (plan.blocks and plan.stem and plan.tail):
        raise ConfigError(
            f"layers: model {type(model).__name__} declares no plan for them (plan.blocks, plan.stem and plan.tail); "
            f"only one device would do"
        )
    ranges = partition(costs(model, balance, time), len(devices))
    places = _places(model, plan, ranges, devices)
    _check_one_place(model, places)
    for module, device in places:
        module.to(device)
        _bring_inputs(module, device)
    return ranges


def _places(
    model: nn.Module, plan: Plan, ranges: Sequence[range], devices: Sequence[torch.device]
) -> list[tuple[nn.Module, torch.device]]:
    blocks = model.get_submodule(plan.blocks)
    return [
        *((model.get_submodule(path), devices[0]) for path in plan.stem),
        *((blocks.get_submodule(str(i)), d) for indexes, d in zip(ranges, devices, strict=True) for i in indexes),
        *((model.get_submodule(path), devices[-1]) for path in plan.tail),
    ]


def _check_one_place(model: nn.Module, places: Sequence[tuple[nn.Module, torch.device]]) -> None:
    """Raises ConfigError for a parameter that nobody places, or that two devices would have."""
    places_of: dict[int, set[int]] = {}
    for index, (module, _) in enumerate(places):
        for tensor in [*module.parameters(), *module.buffers()]:
            places_of.setdefault(id(tensor), set()).add(index)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found = places_of.get(id(tensor), set())
        if not found:
            raise ConfigError(f"layers: {name} is in no block, nor in plan.stem or plan.tail: it has no device")
        if len({places[index][1] for index in found}) > 1:
            raise ConfigError(f"layers: {name} is used on several devices; weights that are tied can't be spread so")


def _bring_inputs(module: nn.Module, device: torch.device) -> None:
    computes: Callable[..., Any] = type(module).forward

    def forward(self: nn.Module, *inputs: Any, **options: Any) -> Any:
        inputs, options = tree_map_only(Tensor, lambda x: x.to(device, non_blocking=True), (inputs, options))
        return computes(self, *inputs, **options)

    replace_forward(module, forward)
