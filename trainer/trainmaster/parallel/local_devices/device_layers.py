"""Layers on several devices of one process: the plain form of model parallelism, without micro-batches.

Only one device computes at a time, so this saves memory but no time; a pipeline over ranks saves both. Over ranks, the
same is a pipeline of one micro-batch (schedule GPipe).
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

BALANCE = "Compute"
"""How `tm.parallelize(…, devices=…)` balances the layers: by their operations, and not by their parameters."""


def apply(model: nn.Module, devices: Sequence[torch.device], balance: str, time: int) -> list[range]:
    """Move consecutive blocks of `model` to each device; the stem goes to the first device, the tail to the last.

    Activations follow, forwards and backwards: the model takes tokens from any device, and its output is on the last
    one. Return the blocks of each device. Raises ConfigError before anything is moved.
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
    """Raise ConfigError for a parameter that has no device, or two."""
    places_of: dict[int, set[int]] = {}
    for index, (module, _) in enumerate(places):
        for tensor in [*module.parameters(), *module.buffers()]:
            places_of.setdefault(id(tensor), set()).add(index)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found = places_of.get(id(tensor), set())
        if not found:
            raise ConfigError(
                f"layers: {name} is in no block, and neither in plan.stem nor in plan.tail, so it has no device"
            )
        if len({places[index][1] for index in found}) > 1:
            raise ConfigError(f"layers: {name} is used on several devices; tied weights must be on one device")


def _bring_inputs(module: nn.Module, device: torch.device) -> None:
    computes: Callable[..., Any] = type(module).forward

    def forward(self: nn.Module, *inputs: Any, **options: Any) -> Any:
        inputs, options = tree_map_only(Tensor, lambda x: x.to(device, non_blocking=True), (inputs, options))
        return computes(self, *inputs, **options)

    replace_forward(module, forward)
