"""How the global batch is divided into the micro-batches of each rank: how many there are, and how large they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainmaster.contract.config.batch_config import BatchConfig
from trainmaster.contract.config.divisors_and_multiples import divisors
from trainmaster.contract.config.parallelism_config import ParallelismConfig, PipelineConfig


def share_of_each_rank(
    parallelism: ParallelismConfig, batch: BatchConfig, world_size: int, divisor: int = 1
) -> tuple[int, int]:
    """Return (micro, accumulation) of each rank in a world of `world_size` ranks.

    With a pipeline and without batch.micro, the number of micro-batches is the smallest one that is at least twice the
    number of stages, if there is one. Raises ValueError, with a sentence for a person, if the numbers do not divide.
    """
    ranks = parallelism.data_ranks(world_size)
    batch = batch.at(world_size)
    pipeline, stages = parallelism.pipeline or PipelineConfig(), parallelism.pp or 1
    if stages == 1:
        return batch.accumulation(ranks, divisor)
    if batch.micro is None and batch.global_ % ranks == 0:
        # Micro-batches are what keeps the stages busy: with twice as many a third of the time is lost at most.
        share = batch.global_ // ranks
        legal = [n for n in divisors(share) if pipeline.refusal(stages, n) is None]
        wanted = min((n for n in legal if n >= 2 * stages), default=max(legal, default=share))
        batch = batch.model_copy(update={"micro": share // wanted})
    micro, accumulation = batch.accumulation(ranks, divisor)
    refusal = pipeline.refusal(stages, accumulation)
    if refusal:
        raise ValueError(
            f"{refusal}, and batch.global {batch.global_} over {ranks} data-parallel ranks makes {accumulation}"
        )
    return micro, accumulation


def pod_counts_that_may_share(
    parallelism: ParallelismConfig, batch: BatchConfig, ranks_per_pod: int, low: int, high: int
) -> Sequence[int]:
    """Return the numbers of pods from `low` to `high`, ascending, that may pass `share_of_each_rank`; no other does.

    There may be 100,000 numbers of pods, and to check one of them takes some 15 microseconds. One operator reads all
    jobs, so it checks only these. The ranks of pp, cp and tp work on the same samples, so the number of ranks is a
    multiple of these degrees. The rest of it divides the batch, unless the batch grows with it.
    """
    inner = math.prod(parallelism.inner.values())
    if batch.scaling is not None:
        step = inner // math.gcd(inner, ranks_per_pod)
        return range(-(-low // step) * step, high + 1, step)
    worlds = (inner * data for data in divisors(batch.global_))
    return [n for world in worlds if world % ranks_per_pod == 0 and low <= (n := world // ranks_per_pod) <= high]
