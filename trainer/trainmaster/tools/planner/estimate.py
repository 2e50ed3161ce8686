"""The whole estimate of a layout, and the order of layouts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainmaster.parallel.stages.partition import partition
from trainmaster.parallel.stages.pipeline import own_stages
from trainmaster.tools.planner import communication, memory_estimate, schedules
from trainmaster.tools.planner.layouts import Layout, micro_batches_to_compare, smaller_micro_batches
from trainmaster.tools.planner.machine import Machine
from trainmaster.tools.planner.memory_estimate import Group, Memory
from trainmaster.tools.planner.survey import Survey
from trainmaster.tools.planner.trace import Slice, Use

ITERATIONS = 5
"""Iterations of muon. Each has three products."""

CALLS_OF_OPTIMIZER = 15
"""Operations of torch for each parameter in a step: those of AdamW, of the norm and of the clipping."""


@dataclass(frozen=True)
class Estimate:
    """The estimate of a layout. Each number is that of the worst rank."""

    layout: Layout
    context: int  # tokens of a sequence
    memory: Memory  # of the rank with the highest peak
    sent: dict[str, float]  # bytes in a step, by axis
    bubble: float
    seconds: float  # of a step
    fits: bool

    @property
    def tokens(self) -> int:
        """Return the tokens of a step."""
        return self.layout.config.batch.at(self.layout.ranks).global_ * self.context


def best_first(layouts: Iterable[Layout], survey: Survey, machine: Machine) -> list[Estimate]:
    """Return each layout with its fastest micro-batch size that fits, sorted by the time of a step.

    Layouts of which no size fits come last, those with the lowest peak first.
    """
    return sorted((with_fastest_micro_batch(layout, survey, machine) for layout in layouts), key=_rank)


def with_fastest_micro_batch(layout: Layout, survey: Survey, machine: Machine) -> Estimate:
    """Return the estimate with the fastest micro-batch size.

    Of equally fast sizes the largest is used, because the estimate does not know that kernels are slower on small
    parts.
    """
    found = [estimate(candidate, survey, machine) for candidate in micro_batches_to_compare(layout)]
    return min(found, key=lambda e: _rank(e)[:2])


def _rank(found: Estimate) -> tuple[bool, float, int]:
    """Return a key that sorts estimates, the best one first."""
    return not found.fits, found.seconds if found.fits else found.memory.peak, found.memory.peak


def with_largest_micro_batch(layout: Layout, survey: Survey, machine: Machine) -> Estimate:
    """Return the estimate with the largest micro-batch that fits, or with the smallest if none does."""
    for candidate in smaller_micro_batches(layout):
        found = estimate(candidate, survey, machine)
        if found.fits:
            break
    return found


def estimate(layout: Layout, survey: Survey, machine: Machine) -> Estimate:
    micro, count = layout.micro_batches
    pp = layout.degrees["pp"]
    uses = survey.uses(slice_of(layout))
    memories, sent, busiest, called = [], [], 0.0, 0.0
    for rank, own in enumerate(stages_of_ranks(layout, survey)):
        groups = [*memory_estimate.groups(survey.inventory, layout, own)]
        parts = [uses.of_stage(blocks, survey.layers) for blocks in own]
        active = schedules.held(layout.pipeline, pp, count, rank)
        memories.append(
            Memory(
                memory_estimate.held(groups, layout, 0, layout.config.optimizer),
                micro * _saved(parts, active, pp > 1),
                micro * max(part.again for stage in parts for part in stage),
                *memory_estimate.whole(groups, layout, count),
                _received(own, survey.layers) * uses.block.result * micro * count,
                in_host_memory=layout.sharding.offload,
                summed=memory_estimate.summed(groups, layout),
            )
        )
        sent.append(_sent(layout, groups, [use for stage in parts for use in stage], uses.block.result))
        own_parts = [part for stage in parts for part in stage]
        calls = count * sum(part.operations for part in own_parts) + CALLS_OF_OPTIMIZER * _tensors(groups)
        busiest = max(
            busiest, machine.computes_s(operations(layout, survey, own) + _orthogonalizing(layout, groups), calls)
        )
        called = max(called, _collectives(layout, groups, own_parts))
    bubble = schedules.bubble(layout.pipeline, pp, count)
    most = max(sent, key=communication.total)
    worst = max(memories, key=lambda m: m.peak)
    across = layout.axes_between_nodes(machine.ranks_per_node) if machine.ranks_per_node else set()
    seconds = busiest / (1 - bubble) + max(machine.sends_s(each, called, across) for each in sent)
    fits = machine.memory is None or worst.peak <= machine.memory
    return Estimate(layout, survey.time, worst, most, bubble, seconds, fits)


def stages(layout: Layout, survey: Survey) -> list[range]:
    """Return the blocks of each stage."""
    pipeline = layout.pipeline
    pp = layout.degrees["pp"]
    if pp == 1:
        return [range(survey.layers)]
    return partition(survey.costs(pipeline.balance), pp * pipeline.stages_per_rank)


def stages_of_ranks(layout: Layout, survey: Survey) -> list[list[range]]:
    """Return the blocks of each stage of each rank of axis pp."""
    pp, ranges = layout.degrees["pp"], stages(layout, survey)
    if pp == 1:
        return [ranges]
    return [[ranges[i] for i in own_stages(rank, pp, layout.pipeline)] for rank in range(pp)]


def slice_of(layout: Layout) -> Slice:
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


def operations(layout: Layout, survey: Survey, own: Sequence[range]) -> float:
    """Return the operations of a rank with these stages in a step.

    A backward pass has twice the operations of a forward pass. Recomputation adds one more forward pass; for Selective
    nothing is added.
    """
    costs = survey.costs("Compute")
    again = 4 / 3 if layout.config.recompute in ("Full", "Reversible") else 1
    forward = 0.0
    for blocks in own:
        forward += sum(costs.blocks[blocks.start : blocks.stop]) * again
        forward += (costs.stem if blocks.start == 0 else 0.0) + (costs.tail if blocks.stop == survey.layers else 0.0)
    micro, count = layout.micro_batches
    return 3 * forward * (micro * count) / (layout.degrees["tp"] * layout.degrees["cp"])


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
            total += count / n * ITERATIONS * 2 * (2 * low * low * high * tp + low**3) / tp
    return total


def _saved(stages: Sequence[Sequence[Use]], active: int, in_pipeline: bool) -> int:
    """Return the bytes for one sequence of each of `active` micro-batches x stages, the most expensive stages first."""
    outputs = [stage[-1].output if in_pipeline else 0 for stage in stages]
    sizes = sorted(
        (sum(part.saved for part in stage) + output for stage, output in zip(stages, outputs, strict=True)),
        reverse=True,
    )
    each, rest = divmod(active, len(stages))
    return sum(size * (each + (i < rest)) for i, size in enumerate(sizes))


def _received(own: Sequence[range], layers: int) -> int:
    """Return how many streams and gradients a rank with these stages receives."""
    return sum((blocks.start > 0) + (blocks.stop < layers) for blocks in own)


def _tensors(groups: Sequence[Group]) -> int:
    return sum(len(group.shapes) for group in groups)


def _collectives(layout: Layout, groups: Sequence[Group], parts: Sequence[Use]) -> float:
    """Return the number of collectives that a rank takes part in, in a step."""
    _, count = layout.micro_batches
    found = communication.collectives_of_data_parallelism(groups, layout, count)
    found += count * sum(part.collectives for part in parts)
    if layout.degrees["pp"] > 1:
        found += 2 * count * layout.pipeline.stages_per_rank
    return found


def _sent(layout: Layout, groups: Sequence[Group], parts: Sequence[Use], stream: int) -> dict[str, float]:
    """Return the bytes that a rank sends in a step, by axis. `stream` is the size of one sequence between two
    blocks."""
    micro, count = layout.micro_batches
    sent = communication.of_data_parallelism(groups, layout, count)
    for part in parts:
        for axis, each in part.sent.items():
            sent[axis] = sent.get(axis, 0.0) + each * (micro * count)
    if layout.config.optimizer.name == "muon":
        for axis, bytes_ in communication.of_muon(groups, layout).items():
            sent[axis] = sent.get(axis, 0.0) + bytes_
    between = communication.of_stages(layout, stream * micro, count)
    return {**sent, **({"pp": between} if between else {})}
