"""The numbers of pods with which a job can share its model and its batch at all.

There may be 100,000 numbers of pods, and to check one of them takes some 15 microseconds. One operator reads all jobs,
so it checks only those few that can be right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainmaster.contract.config import BatchConfig, ParallelismConfig, divisors


def candidates(
    parallelism: ParallelismConfig, batch: BatchConfig, ranks_per_pod: int, low: int, high: int
) -> Sequence[int]:
    """Return the numbers of pods from `low` to `high`, ascending, that may pass `share_of_each_rank`; no other does.

    The ranks of pp, cp and tp work on the same samples, so the number of ranks is a multiple of these degrees. The rest
    of it divides the batch, unless the batch grows with it.
    """
    inner = math.prod(parallelism.inner.values())
    if batch.scaling is not None:
        step = inner // math.gcd(inner, ranks_per_pod)
        return range(-(-low // step) * step, high + 1, step)
    worlds = (inner * data for data in divisors(batch.global_))
    return [n for world in worlds if world % ranks_per_pod == 0 and low <= (n := world // ranks_per_pod) <= high]
