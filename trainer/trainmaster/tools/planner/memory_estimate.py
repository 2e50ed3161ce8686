"""The memory of a rank, by kind. It imports no torch.

Parameters, gradients and the optimizer's state are those of the tensors that FSDP2, `replicate` and `ShardOptimizer`
make, to the byte, on every rank: shards have padded storage, and the gradients of a group share one buffer. What exists
only during a part of a step is an estimate of its maximum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainmaster.contract.config import OptimizerConfig
from trainmaster.reduce import compressed_size
from trainmaster.tools.planner.inventory import Inventory, Parameter
from trainmaster.tools.planner.layouts import Layout

WHOLES = 5
"""Number of matrices that muon needs at a time: the matrix itself, scaled, twice its factors, and the product."""

MASTER = 4  # bytes of an element of parameters, gradients and optimizer state


@dataclass(frozen=True)
class Held:
    """The bytes that a rank holds between two steps."""

    parameters: int
    gradients: int  # when they are complete, just before the optimizer
    optimizer: int
    compression: int = 0  # of gradients that replicas sum
    saved_compression: int = 0  # the part of it that checkpoints keep

    @property
    def saved(self) -> int:
        """Return the bytes of the tensors that the rank saves, with the padding of shards."""
        return self.parameters + self.optimizer + self.saved_compression


@dataclass(frozen=True)
class Memory:
    """The bytes of a rank at its maximum."""

    held: Held
    activations: int  # kept from the forward to the backward pass
    recomputed: int  # in the backward pass, of one block at a time
    whole_parameters: int  # gathered from shards, and copies in the precision of the computation
    whole_gradients: int  # before they are summed and scattered
    received: int  # between stages: torch keeps room for every micro-batch
    in_host_memory: bool  # what is held, with sharding.offload
    summed: int = 0  # by compressed sums and by muon, when nothing else is left of a step

    @property
    def buffers(self) -> int:
        return self.recomputed + self.whole_parameters + self.whole_gradients + self.received

    @property
    def peak(self) -> int:
        """Return the peak bytes on the device."""
        parts = self.held
        held = 0 if self.in_host_memory else parts.parameters + parts.gradients + parts.optimizer
        return held + parts.compression + max(self.activations + self.buffers, self.summed)


@dataclass(frozen=True)
class Group:
    """Parameters that are gathered together, and whose gradients are reduced together.

    A rank has `times` such groups, which are equal and follow each other: those of the blocks of a stage.
    """

    shapes: tuple[tuple[int, ...], ...]  # of what other axes leave
    experts: tuple[bool, ...]  # of each: over the mesh of experts
    is_root: bool  # kept whole until the end of a backward pass
    times: int = 1


def groups(inventory: Inventory, layout: Layout, blocks: Sequence[range]) -> Iterator[Group]:
    """Yield the groups of a rank whose stages have these blocks."""
    for stage in blocks:
        if stage:
            yield from _block(inventory.block, layout, len(stage))
        ends: list[Parameter] = []
        if stage.start == 0:
            ends += inventory.stem
        if stage.stop == inventory.layers:
            ends += inventory.tail
        if ends:
            yield _group(ends, layout, is_root=True)


def held(groups: Iterable[Group], layout: Layout, rank: int, optimizer: OptimizerConfig) -> Held:
    """Return what the rank at coordinate `rank` of the shards (dpShard x cp) holds."""
    parameters = states = marks = 0
    groups = [*groups]
    for group in groups:
        for shape, is_expert in zip(group.shapes, group.experts, strict=True):
            padded, own = shard(shape, *place(layout, rank, is_expert), is_expert)
            parameters += group.times * padded * MASTER
            states += group.times * _state(own, optimizer, in_matrix=not group.is_root and len(shape) > 1)
            marks += group.times * MASTER
    # Plain replicas sum, with each gradient, whether there is one.
    in_buckets = layout.is_plain and layout.degrees["dpReplicate"] > 1 and layout.compression is None
    kept = saved = 0
    if layout.compression is not None:
        shapes = shards(groups, layout, rank)
        kept, saved = (
            compressed_size.kept(layout.compression, shapes),
            compressed_size.saved(layout.compression, shapes),
        )
    return Held(parameters, parameters + (marks if in_buckets else 0), states, kept, saved)


def shards(groups: Iterable[Group], layout: Layout, rank: int) -> list[tuple[int, ...]]:
    """Return the shapes of the rank's part of each parameter."""
    found = []
    for group in groups:
        for shape, is_expert in zip(group.shapes, group.experts, strict=True):
            n, own = place(layout, rank, is_expert)
            if is_expert and shape[0] % n:
                part = (shape[0], shape[1] // n, *shape[2:])
            else:
                each = -(-shape[0] // n)
                part = (min(each, max(0, shape[0] - own * each)), *shape[1:])
            found += [part] * group.times
    return found


def _block(parameters: Sequence[Parameter], layout: Layout, times: int) -> Iterator[Group]:
    dealt = [p for p in parameters if p.is_expert and layout.degrees["ep"] > 1]
    if dealt:
        yield _group(dealt, layout, is_root=False, times=times)
    yield _group([p for p in parameters if p not in dealt], layout, is_root=False, times=times)


def _group(parameters: Sequence[Parameter], layout: Layout, *, is_root: bool, times: int = 1) -> Group:
    tp, ep = layout.degrees["tp"], layout.degrees["ep"]
    return Group(
        tuple(p.local(tp, ep) for p in parameters),
        tuple(p.is_expert and ep > 1 for p in parameters),
        is_root,
        times,
    )


def place(layout: Layout, rank: int, is_expert: bool) -> tuple[int, int]:
    """Return (number of shards, index of the rank's shard)."""
    ep = layout.degrees["ep"] if is_expert else 1
    return layout.shards // ep, rank // ep


def shard(shape: tuple[int, ...], n: int, rank: int, is_expert: bool) -> tuple[int, int]:
    """Return (elements of the shard's storage, which is padded to that of the first rank; elements of the parameter in
    it).

    FSDP2 divides dim 0 as `torch.chunk` does; experts that are fewer than the ranks are divided along dim 1 (see
    `shard`).
    """
    if is_expert and shape[0] % n:
        return (math.prod(shape) // n,) * 2
    rows, row = shape[0], math.prod(shape[1:])
    each = -(-rows // n)
    return each * row, min(each, max(0, rows - rank * each)) * row


def _state(elements: int, optimizer: OptimizerConfig, *, in_matrix: bool) -> int:
    """Return the bytes of the optimizer's state for a parameter.

    AdamW has two moments, and a step count for each tensor. SGD has one moment, if it has momentum. Muon has one moment
    for matrices of blocks.
    """
    if optimizer.name == "adamw" or (optimizer.name == "muon" and not in_matrix):
        return 2 * elements * MASTER + 4
    return elements * MASTER if optimizer.name == "muon" or optimizer.momentum_or_default else 0


def whole(groups: Sequence[Group], layout: Layout, micro_batches: int) -> tuple[int, int]:
    """Return the bytes of (whole parameters, whole gradients) at the maximum in a step."""
    width = MASTER if layout.config.precision == "fp32" else 2
    sizes = [(sum(map(math.prod, group.shapes)), group.is_root) for group in groups]
    every = sum(n * group.times for (n, _), group in zip(sizes, groups, strict=True))
    largest = max(n for n, _ in sizes)
    root = sum(n for n, is_root in sizes if is_root)
    block = max((n for n, is_root in sizes if not is_root), default=0)
    if layout.is_plain:
        # A gradient as it comes, before it is added to what there is of it. Beside those of replicas there was a little
        # more wherever it was measured, never more than a block's.
        replicated = layout.degrees["dpReplicate"] > 1
        single = max(math.prod(shape) for group in groups for shape in group.shapes)
        return 0, max(single, block if replicated else 0) * MASTER
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


def summed(groups: Iterable[Group], layout: Layout) -> int:
    """Return the bytes that compressed sums, or muon, need while they are computed.

    Compressed sums need the sum, and TopK the sizes by which it chooses.
    """
    groups = [*groups]
    compressed = 0
    if layout.compression is not None:
        compressed = sum(math.prod(shape) for shape in shards(groups, layout, 0)) * MASTER * 2
    return max(compressed, _orthogonalized(groups, layout) if layout.config.optimizer.name == "muon" else 0)


def _orthogonalized(groups: Sequence[Group], layout: Layout) -> int:
    """Return the bytes that muon needs.

    For divided matrices: all updates until the step, and a batch of parts on its way to whole matrices and back. For
    each matrix: one at a time, with its square and its result.
    """
    joined = layout.is_sharded or layout.degrees["tp"] > 1
    matrices = [group for group in groups if not group.is_root]
    updates = sum(math.prod(s) for s in shards(matrices, layout, 0) if len(s) > 1) if joined else 0
    tp = layout.degrees["tp"]
    largest = max((math.prod(s) * tp for group in matrices for s in group.shapes if len(s) > 1), default=0)
    return (updates + (WHOLES + 3 if joined else WHOLES) * largest) * MASTER
