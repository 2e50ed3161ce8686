"""The memory of a rank, by kind. Imports no torch.

Parameters, gradients and the optimizer's state are those of the tensors that FSDP2, `replicate` and `ShardOptimizer`
make, to the byte, on every rank: shards lie in padded storage, the gradients of a group share one buffer. What is there
for a part of a step only is an estimate of its largest moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainmaster.contract.config import OptimizerConfig
from trainmaster.planner.inventory import Inventory, Parameter
from trainmaster.planner.layouts import Layout

MASTER = 4  # bytes of an element of parameters, gradients and optimizer state


@dataclass(frozen=True)
class Held:
    """Bytes between two steps."""

    parameters: int
    gradients: int  # when they are complete, just before the optimizer
    optimizer: int


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank at its worst moment."""

    held: Held
    activations: int
    whole_parameters: int  # gathered from shards, and copies in the precision of the computation
    whole_gradients: int  # before they are summed and scattered
    received: int  # between stages: torch keeps room for every micro-batch
    in_host_memory: bool  # what is held, with sharding.offload

    @property
    def buffers(self) -> int:
        return self.whole_parameters + self.whole_gradients + self.received

    @property
    def peak(self) -> int:
        """On the device."""
        held = 0 if self.in_host_memory else self.held.parameters + self.held.gradients + self.held.optimizer
        return held + self.activations + self.buffers


@dataclass(frozen=True)
class Group:
    """Parameters that are gathered, and whose gradients are reduced, together."""

    shapes: tuple[tuple[int, ...], ...]  # of what other axes leave
    experts: tuple[bool, ...]  # of each: over the mesh of experts
    is_root: bool  # kept whole until the end of a backward pass


def groups(inventory: Inventory, layout: Layout, blocks: Sequence[range]) -> Iterator[Group]:
    """Of a rank whose stages have these blocks."""
    for stage in blocks:
        for _ in stage:
            yield from _block(inventory.block, layout)
        ends: list[Parameter] = []
        if stage.start == 0:
            ends += inventory.stem
        if stage.stop == inventory.layers:
            ends += inventory.tail
        if ends:
            yield _group(ends, layout, is_root=True)


def held(groups: Iterable[Group], layout: Layout, rank: int, optimizer: OptimizerConfig) -> Held:
    """Of the rank at coordinate `rank` of the ranks that parameters are sharded over (dp_shard x cp)."""
    parameters = states = marks = 0
    for group in groups:
        for shape, is_expert in zip(group.shapes, group.experts, strict=True):
            padded, own = shard(shape, *place(layout, rank, is_expert), is_expert)
            parameters += padded * MASTER
            states += _state(own, optimizer)
            marks += MASTER
    # Plain replicas sum, with each gradient, whether there is one.
    in_buckets = layout.is_plain and layout.degrees["dp_replicate"] > 1
    return Held(parameters, parameters + (marks if in_buckets else 0), states)


def _block(parameters: Sequence[Parameter], layout: Layout) -> Iterator[Group]:
    dealt = [p for p in parameters if p.is_expert and layout.degrees["ep"] > 1]
    if dealt:
        yield _group(dealt, layout, is_root=False)
    yield _group([p for p in parameters if p not in dealt], layout, is_root=False)


def _group(parameters: Sequence[Parameter], layout: Layout, *, is_root: bool) -> Group:
    tp, ep = layout.degrees["tp"], layout.degrees["ep"]
    return Group(
        tuple(p.local(tp, ep) for p in parameters),
        tuple(p.is_expert and ep > 1 for p in parameters),
        is_root,
    )


def place(layout: Layout, rank: int, is_expert: bool) -> tuple[int, int]:
    """(how many shards there are, which is the rank's)."""
    ep = layout.degrees["ep"] if is_expert else 1
    return layout.shards // ep, rank // ep


def shard(shape: tuple[int, ...], n: int, rank: int, is_expert: bool) -> tuple[int, int]:
    """Elements (of the shard's storage, which is padded to the first rank's; of what it has of the parameter).

    FSDP2 cuts dim 0 as `torch.chunk` does; experts, where they are fewer than the ranks, along dim 1 (see `shard`).
    """
    if is_expert and shape[0] % n:
        return (math.prod(shape) // n,) * 2
    rows, row = shape[0], math.prod(shape[1:])
    each = -(-rows // n)
    return each * row, min(each, max(0, rows - rank * each)) * row


def _state(elements: int, optimizer: OptimizerConfig) -> int:
    """AdamW: two moments, and a number of steps for each tensor. SGD: one, if it has momentum."""
    if optimizer.name == "adamw":
        return 2 * elements * MASTER + 4
    return elements * MASTER if optimizer.momentum else 0


def whole(groups: Sequence[Group], layout: Layout, micro_batches: int) -> tuple[int, int]:
    """Bytes of (whole parameters, whole gradients) at the worst moment of a step."""
    width = 2 if layout.config.precision == "bf16" else MASTER
    sizes = [(sum(map(math.prod, group.shapes)), group.is_root) for group in groups]
    every, largest = sum(n for n, _ in sizes), max(n for n, _ in sizes)
    root = sum(n for n, is_root in sizes if is_root)
    block = max((n for n, is_root in sizes if not is_root), default=0)
    if layout.is_plain:
        # Gradients of replicas are there twice, as they come and as they are summed.
        replicated = layout.degrees["dp_replicate"] > 1
        return 0, (
            every if replicated else max(math.prod(shape) for group in groups for shape in group.shapes)
        ) * MASTER
    many_stages = layout.degrees["pp"] > 1
    stage = layout.sharding.stage if layout.is_sharded else 1
    if layout.is_sharded and stage == 3 and not many_stages:
        # The root's, those of a block, and those of the one that is gathered meanwhile.
        parameters = (root + 2 * block) * width
    else:
        parameters = (every + (block if layout.is_sharded else 0)) * width
    if micro_batches > 1 and (stage == 1 or many_stages):
        gradients = every * MASTER
    else:
        gradients = largest * width
    # What is summed lies in one more buffer, group by group.
    return parameters, gradients + largest * MASTER
