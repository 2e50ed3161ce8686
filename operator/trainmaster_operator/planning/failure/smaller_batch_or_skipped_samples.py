"""What the next round does differently after a failure: smaller micro-batches, or without some samples."""

from __future__ import annotations

from trainmaster.contract.config import share_of_each_rank
from trainmaster.contract.sample_ranges import merged
from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.view import View

RANGES = 32
"""Maximum number of ranges of skipped samples that the status keeps."""


def halved(view: View, fault: Fault) -> int | None:
    """Return the new divisor of the micro-batch after a device ran out of memory; None if a smaller micro-batch is no
    solution.

    Each halving is another attempt with less memory, and only few are possible, so they use no budget.
    """
    training = view.spec.training
    if training is None or fault.cause is not Cause.OUT_OF_MEMORY or not fault.on_device:
        return None
    world_size = view.status.workers.replicas * view.spec.workers.ranksPerPod
    divisor = view.status.microDivisor

    def micro(divisor: int) -> int:
        return share_of_each_rank(training.parallelism, training.batch, world_size, divisor)[0]

    now = micro(divisor)
    if now == 1:
        return None
    while micro(divisor) > now // 2:
        divisor *= 2
    return divisor


def skipped(view: View, fault: Fault) -> list[list[int]] | None:
    """Return the ranges of samples to skip from now on, including those of the failed step. Return None if these are
    not known, are skipped already, or would be one range too many."""
    if len(fault.samples) != 2 or fault.samples[0] >= fault.samples[1]:
        return None
    before = merged(view.status.skipped)
    ranges = merged([*before, fault.samples])
    return None if ranges == before or len(ranges) > RANGES else [list(r) for r in ranges]
