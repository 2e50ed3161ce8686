"""Optimizers over the shards of a rank: AdamW, SGD and Muon, with their groups of parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainmaster.contract.config import OptimizerConfig
from trainmaster.optim.muon import Matrix, Muon, matrices
from trainmaster.parallel.local_shard import local


class ShardOptimizer:
    """A torch optimizer over this rank's shards, as plain tensors that share the parameters' memory.

    An optimizer over DTensors computes the same numbers, but dispatches each operation through sharding propagation:
    0.1 s in the first step after each restart, and milliseconds in every step.
    """

    restored_options = frozenset({"lr"})
    """What a resumed run takes from the options of its checkpoint. The job's config sets the others, and each step sets
    the learning rate: it is restored so that the state is the one that was saved."""

    def __init__(self, model: nn.Module, config: OptimizerConfig, precision: str = "fp32") -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.shards = [nn.Parameter(local(p)) for p in self.parameters]
        self.origins = {id(shard): p for shard, p in zip(self.shards, self.parameters, strict=True)}
        found: list[Matrix] = []
        if config.name == "muon":
            found = matrices(model, zip(self.parameters, self.shards, strict=True))
        self.inner = _build(self.shards, config, precision, found)
        self.state_kinds: frozenset[str] | None = None
        """The kinds of state to take from a checkpoint; None: all. SGD would keep AdamW's averages and save them again,
        but never use them."""
        if config.name == "sgd":
            self.state_kinds = frozenset(["momentum_buffer"] if config.momentum_or_default else [])
        self.joins = any(matrix.hops for matrix in found)

    @property
    def state(self) -> Any:
        return self.inner.state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.inner.param_groups
        return groups

    def orthogonalize(self, factor: torch.Tensor | None) -> None:
        """Compute what needs other ranks, for an optimizer that `joins`. All ranks call it before `step`.

        `factor` is what the gradients, as they are now, will be multiplied by before the step.
        """
        gradients = {
            id(shard): None if parameter.grad is None else local(parameter.grad)
            for parameter, shard in zip(self.parameters, self.shards, strict=True)
        }
        self.inner.orthogonalize(lambda shard: gradients[id(shard)], factor)

    def step(self, rate: float, dropped: torch.Tensor | None = None) -> None:
        """Apply the gradients at a learning rate, and drop them.

        `dropped` is 1.0 if they are not to be applied. Only the device knows its value.
        """
        for parameter, shard in zip(self.parameters, self.shards, strict=True):
            shard.grad = None if parameter.grad is None else local(parameter.grad)
            parameter.grad = None
        for group in self.inner.param_groups:
            group["lr"] = rate
        # What torch's own scaler does: fused optimizers look at it where they run. With sharding.offload that is the
        # host, which must have it by then: they would ask for a copy and not wait for it.
        self.inner.found_inf = None if dropped is None else dropped.to(self.shards[0].device)
        self.inner.step()
        self.inner.zero_grad()


def _build(
    shards: list[nn.Parameter], config: OptimizerConfig, precision: str, matrices: list[Matrix]
) -> torch.optim.Optimizer:
    """Return the optimizer. Weight decay applies to matrices, and not to vectors such as norms and biases."""
    groups = [
        {"params": [p for p in shards if p.dim() >= 2], "weight_decay": config.weightDecay},
        {"params": [p for p in shards if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.name == "sgd":
        if precision != "fp16":
            return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum_or_default)
        # Only the fused one can leave a step out. If that is the first, it leaves its momentum uninitialized: so it
        # begins with what the first step would make of nothing.
        sgd = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum_or_default, fused=True)
        if config.momentum_or_default:
            for shard in shards:
                sgd.state[shard]["momentum_buffer"] = torch.zeros_like(shard)
        return sgd
    if config.name == "muon":
        # What blocks compute in is exact enough for a direction, and as fast here as it is there.
        dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        return Muon(
            groups, matrices, config.momentum_or_default, dtype, lr=config.lr, betas=config.betas, eps=config.eps
        )
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
