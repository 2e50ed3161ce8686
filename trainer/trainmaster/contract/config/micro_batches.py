"""How the global batch is divided into the micro-batches of each rank: how many there are, and how large they are."""

from __future__ import annotations

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
