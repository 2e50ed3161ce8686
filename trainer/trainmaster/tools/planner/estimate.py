"""The whole estimate of a layout, and the order of layouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainmaster.tools.planner import communication, memory_estimate, rank_work, schedules
from trainmaster.tools.planner.layouts import Layout, micro_batches_to_compare, smaller_micro_batches
from trainmaster.tools.planner.machine import Machine
from trainmaster.tools.planner.memory_estimate import Memory
from trainmaster.tools.planner.rank_work import RankStages
from trainmaster.tools.planner.survey import Survey

CALLS_OF_OPTIMIZER = 15
"""Operations of torch for each parameter in a step: those of AdamW, of the norm and of the clipping."""


@dataclass(frozen=True)
class Estimate:
    """The estimate of a layout. Each number is that of the worst rank."""

    layout: Layout
    context: int  # tokens of a sequence
    memory: Memory  # of the rank with the highest peak
    saved: int  # bytes of the state that a rank saves, of the rank with the largest one
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
    ranks = rank_work.of_ranks(layout, survey)
    found = [_of_ranks(ranks, candidate, survey, machine) for candidate in micro_batches_to_compare(layout)]
    return min(found, key=lambda e: _rank(e)[:2])


def _rank(found: Estimate) -> tuple[bool, float, int]:
    """Return a key that sorts estimates, the best one first."""
    return not found.fits, found.seconds if found.fits else found.memory.peak, found.memory.peak


def with_largest_micro_batch(layout: Layout, survey: Survey, machine: Machine) -> Estimate:
    """Return the estimate with the largest micro-batch that fits, or with the smallest if none does."""
    ranks = rank_work.of_ranks(layout, survey)
    for candidate in smaller_micro_batches(layout):
        found = _of_ranks(ranks, candidate, survey, machine)
        if found.fits:
            break
    return found


def estimate(layout: Layout, survey: Survey, machine: Machine) -> Estimate:
    return _of_ranks(rank_work.of_ranks(layout, survey), layout, survey, machine)


def _of_ranks(ranks: Sequence[RankStages], layout: Layout, survey: Survey, machine: Machine) -> Estimate:
    """Return the estimate of a layout whose ranks of axis pp have these stages, in this order."""
    _, count = layout.micro_batches
    pp = layout.degrees["pp"]
    memories = [
        _memory(own, layout, schedules.held(layout.pipeline, pp, count, rank)) for rank, own in enumerate(ranks)
    ]
    sent = [_sent(own, layout) for own in ranks]
    busiest = max(_computes_s(own, layout, machine) for own in ranks)
    called = max(_collectives(own, layout) for own in ranks)
    bubble = schedules.bubble(layout.pipeline, pp, count)
    most = max(sent, key=communication.total)
    worst = max(memories, key=lambda m: m.peak)
    across = layout.axes_between_nodes(machine.ranks_per_node) if machine.ranks_per_node else set()
    seconds = busiest / (1 - bubble) + max(machine.sends_s(each, called, across) for each in sent)
    fits = machine.memory is None or worst.peak <= machine.memory
    saved = max(m.held.saved for m in memories)
    return Estimate(layout, survey.time, worst, saved, most, bubble, seconds, fits)


def _memory(own: RankStages, layout: Layout, active: int) -> Memory:
    """Return the memory of a rank that has `active` micro-batches x stages under way."""
    micro, count = layout.micro_batches
    return Memory(
        own.held,
        micro * own.kept(active),
        micro * own.again,
        *memory_estimate.whole(own.groups, layout, count),
        own.received * micro * count,
        in_host_memory=layout.sharding.offload,
        summed=own.summed,
    )


def _computes_s(own: RankStages, layout: Layout, machine: Machine) -> float:
    """Return the seconds that a rank computes in a step. A backward pass has twice the operations of a forward pass."""
    micro, count = layout.micro_batches
    operations = 3 * own.forward * (micro * count) / (layout.degrees["tp"] * layout.degrees["cp"])
    return machine.computes_s(operations + own.optimizer, count * own.calls + CALLS_OF_OPTIMIZER * own.tensors)


def _collectives(own: RankStages, layout: Layout) -> float:
    """Return the number of collectives that a rank takes part in, in a step."""
    _, count = layout.micro_batches
    found = communication.collectives_of_data_parallelism(own.groups, layout, count)
    found += count * own.collectives
    if layout.degrees["pp"] > 1:
        found += 2 * count * layout.pipeline.stages_per_rank
    return found


def _sent(own: RankStages, layout: Layout) -> dict[str, float]:
    """Return the bytes that a rank sends in a step, by axis."""
    micro, count = layout.micro_batches
    sent = dict(own.sent_once)
    communication.add(sent, communication.of_shards(own.groups, layout, count))
    communication.add(sent, own.sent, micro * count)
    between = communication.of_stages(layout, own.stream * micro, count)
    return {**sent, **({"pp": between} if between else {})}
