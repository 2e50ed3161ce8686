"""The parameters and operations of a model, and what its parts keep and send, without its memory."""

from __future__ import annotations

from functools import cached_property, lru_cache

import torch
from torch import nn
from torch.distributed.tensor import Shard

from trainmaster import models
from trainmaster.contract.config import ModelConfig
from trainmaster.errors import ConfigError
from trainmaster.models.model_options import TransformerOptions
from trainmaster.parallel import tensor_parallel
from trainmaster.parallel.model_plan import named, plan_of
from trainmaster.parallel.stages.partition import Costs, by_operations, by_parameters, partition
from trainmaster.tools.planner.inventory import Inventory, Parameter
from trainmaster.tools.planner.trace import Slice, Uses, trace


class Survey:
    """The survey of a built-in model."""

    def __init__(self, model: ModelConfig) -> None:
        options = models.validate(model)
        if not isinstance(options, TransformerOptions):
            raise ConfigError(
                f"model.name: layouts of {model.name} can't be estimated; those of built-in transformers can"
            )
        self.layers, self.time = options.layers, options.context
        self._options = options.model_copy(update={"layers": 1})  # all blocks of a built-in model are of the same kind
        with torch.device("meta"):
            self._one = models.module(self._options)
        self.inventory = _inventory(self._one, self.layers)

    def costs(self, balance: str) -> Costs:
        """Return the costs by which a pipeline's stages are divided.

        Operations stand for a profile, which only the ranks' device could give.
        """
        found = by_parameters(self._one) if balance == "Parameters" else self.operations
        return Costs(found.stem, found.blocks * self.layers, found.tail)

    @cached_property
    def operations(self) -> Costs:
        """Return the operations of the forward pass of one sequence. `blocks` has one block."""
        return by_operations(self._one, self.time)

    @lru_cache(maxsize=4096)  # noqa: B019 one survey a process
    def stages(self, balance: str, count: int) -> list[range]:
        """Return the blocks of each of `count` stages of a pipeline."""
        return partition(self.costs(balance), count)

    @lru_cache(maxsize=4096)  # noqa: B019 one survey a process
    def uses(self, part: Slice) -> Uses:
        """Return the uses of one sequence.

        Several sequences use a multiple of it, except for masks and rotations, which are small.
        """
        return trace(self._options, part, self.time)


def _inventory(model: nn.Module, layers: int) -> Inventory:
    plan = plan_of(model)
    roles = {path: role for pattern, role in plan.tensor.items() for path, _ in named(model, pattern)}
    experts = {path for path, _ in named(model, plan.experts)}

    def under(*paths: str) -> tuple[Parameter, ...]:
        found = []
        for name, parameter in model.named_parameters():
            path, _, leaf = name.rpartition(".")
            if any(name.startswith(f"{prefix}.") for prefix in paths):
                placement = tensor_parallel.placement_of(roles.get(path), leaf)
                split = placement.dim if isinstance(placement, Shard) else None
                found.append(Parameter(name, tuple(parameter.shape), split, path in experts))
        return tuple(found)

    inventory = Inventory(under(*plan.stem), under(plan.blocks), under(*plan.tail), layers)
    parts = (inventory.stem, inventory.block, inventory.tail)
    assert sum(map(len, parts)) == len([*model.parameters()]), "parameters outside of stem, blocks and tail"
    return inventory
