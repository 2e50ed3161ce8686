"""The stages of a model that a rank has, and what of them is the same for all sizes of the micro-batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainmaster.parallel.stages.pipeline import own_stages
from trainmaster.tools.planner import communication, memory_estimate
from trainmaster.tools.planner.layouts import Layout
from trainmaster.tools.planner.memory_estimate import Group, Held
from trainmaster.tools.planner.survey import Survey
from trainmaster.tools.planner.trace import Slice, Uses

ITERATIONS = 5
"""Iterations of muon. Each has three products."""


@dataclass(frozen=True)
class RankStages:
    """The stages of a rank of axis pp. Unless a comment says otherwise, numbers are those of one sequence."""

    groups: list[Group]
    held: Held
    summed: int  # bytes that sums of gradients and the optimizer need in a step
    saved: list[int]  # bytes that each stage keeps for the backward pass, the largest first
    again: int  # bytes while a block is computed again
    stream: int  # bytes between two blocks
    received: int  # bytes that come from other stages: streams, and gradients of streams
    sent: dict[str, float]  # bytes that the parts of the model send, by axis
    sent_once: dict[str, float]  # bytes that are sent once in a step, by axis
    calls: int  # of torch, forward and backward
    collectives: int
    forward: float  # operations of all tp x cp ranks in the forward pass, and in what is computed again
    optimizer: float  # operations of the optimizer in a step

    @property
    def tensors(self) -> int:
        """Return the number of parameters."""
        return sum(group.times * len(group.shapes) for group in self.groups)

    def kept(self, active: int) -> int:
        """Return the bytes kept for `active` micro-batches x stages, the most expensive stages first, if each
        micro-batch is one sequence."""
        each, rest = divmod(active, len(self.saved))
        return sum(size * (each + (i < rest)) for i, size in enumerate(self.saved))


def of_ranks(layout: Layout, survey: Survey) -> list[RankStages]:
    """Return what each rank of axis pp has."""
    uses = survey.uses(slice_of(layout))
    return [_of_rank(layout, survey, uses, own) for own in stages_of_ranks(layout, survey)]


def stages(layout: Layout, survey: Survey) -> list[range]:
    """Return the blocks of each stage."""
    pipeline = layout.pipeline
    pp = layout.degrees["pp"]
    if pp == 1:
        return [range(survey.layers)]
    return survey.stages(pipeline.balance, pp * pipeline.stages_per_rank)


def stages_of_ranks(layout: Layout, survey: Survey) -> list[list[range]]:
    """Return the blocks of each stage of each rank of axis pp."""
    pp, ranges = layout.degrees["pp"], stages(layout, survey)
    if pp == 1:
        return [ranges]
    return [[ranges[i] for i in own_stages(rank, pp, layout.pipeline)] for rank in range(pp)]


def slice_of(layout: Layout) -> Slice:
    """Return the part of the model that a rank of this layout has, apart from stages and shards."""
    degrees = layout.degrees
    config = layout.config
    return Slice(
        degrees["tp"],
        degrees["cp"],
        degrees["ep"],
        layout.tensor,
        layout.context,
        config.precision,
        config.recompute,
    )


def _of_rank(layout: Layout, survey: Survey, uses: Uses, own: Sequence[range]) -> RankStages:
    groups = [*memory_estimate.groups(survey.inventory, layout, own)]
    parts = [uses.of_stage(blocks, survey.layers) for blocks in own]
    every = [part for stage in parts for part in stage]
    outputs = [stage[-1].output if layout.degrees["pp"] > 1 else 0 for stage in parts]
    sent: dict[str, float] = {}
    for part in every:
        communication.add(sent, part.sent)
    sent_once = communication.of_replicas(groups, layout)
    if layout.config.optimizer.name == "muon":
        communication.add(sent_once, communication.of_muon(groups, layout))
    return RankStages(
        groups=groups,
        held=memory_estimate.held(groups, layout, 0, layout.config.optimizer),
        summed=memory_estimate.summed(groups, layout),
        saved=sorted(
            (sum(part.saved for part in stage) + output for stage, output in zip(parts, outputs, strict=True)),
            reverse=True,
        ),
        again=max(part.again for part in every),
        stream=uses.block.result,
        received=uses.block.result * sum((blocks.start > 0) + (blocks.stop < survey.layers) for blocks in own),
        sent=sent,
        sent_once=sent_once,
        calls=sum(part.operations for part in every),
        collectives=sum(part.collectives for part in every),
        forward=_forward(layout, survey, own),
        optimizer=_orthogonalizing(layout, groups),
    )


def _forward(layout: Layout, survey: Survey, own: Sequence[range]) -> float:
    """Return the operations of the forward pass of one sequence.

    Recomputation adds a third of them, because forward and backward together are counted as three times these
    operations. For Selective nothing is added.
    """
    costs = survey.costs("Compute")
    again = 4 / 3 if layout.config.recompute in ("Full", "Reversible") else 1
    forward = 0.0
    for blocks in own:
        forward += sum(costs.blocks[blocks.start : blocks.stop]) * again
        forward += (costs.stem if blocks.start == 0 else 0.0) + (costs.tail if blocks.stop == survey.layers else 0.0)
    return forward


def _orthogonalizing(layout: Layout, groups: Sequence[Group]) -> float:
    """Return the operations of muon. Ranks that have parts of the same matrices share them; replicas do not."""
    if layout.config.optimizer.name != "muon":
        return 0.0
    total, tp = 0.0, layout.degrees["tp"]
    for group in groups:
        for shape, is_expert in zip(group.shapes, group.experts, strict=True):
            if group.is_root or len(shape) < 2:
                continue
            count, rows, columns = shape if len(shape) == 3 else (1, shape[0], math.prod(shape[1:]))
            low, high = sorted((rows, columns))
            n, _ = memory_estimate.place(layout, 0, is_expert)
            products = ITERATIONS * 2 * (2 * low * low * high * tp + low**3) / tp
            total += group.times * count / n * products
    return total
