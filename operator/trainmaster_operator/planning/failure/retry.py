"""What the next round does otherwise than the one that failed: smaller micro-batches, or without some samples."""

from __future__ import annotations

from trainmaster.contract.config import share_of_each_rank
from trainmaster.contract.ranges import merged
from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.view import View

RANGES = 32
"""Ranges of skipped samples that the status keeps."""


def halved(view: View, fault: Fault) -> int | None:
    """The divisor of the micro-batch after a device ran out of memory; None where that is no way out.

    Each halving is another attempt with less memory, and there are few: they count nothing.
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
    """What is left out from now on, the samples of the failed step included; None where these aren't known, were left
    out already, or would be one range too many."""
    if len(fault.samples) != 2 or fault.samples[0] >= fault.samples[1]:
        return None
    before = merged(view.status.skipped)
    ranges = merged([*before, fault.samples])
    return None if ranges == before or len(ranges) > RANGES else [list(r) for r in ranges]
