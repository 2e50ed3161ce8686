"""Which faults strike a run, and how often it should save: drawn from a rate and a seed, and from Young's formula.

Decides only. A fault is drawn by training step, not by the clock: it strikes when the run reaches that step for the
first time, so all systems meet the same faults, and one that stands still for long meets no more of them for it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

RANK_KILLED, RANK_FROZEN, POD_KILLED = "rank killed", "rank frozen", "pod killed"
SHARES = {RANK_KILLED: 0.5, RANK_FROZEN: 0.25, POD_KILLED: 0.25}
"""Of each kind among all faults."""


@dataclass(frozen=True)
class Fault:
    step: int  # strikes when this step is completed for the first time
    kind: str
    rank: int  # which one; of a pod, any in it


def draw(mean_steps: float, seed: int, steps: int, ranks: int) -> list[Fault]:
    """Return the faults of a run in the order of their steps, at most one in each step.

    mean_steps: how many steps pass between two faults in the mean; the gaps are exponential. 0: no faults. The same
    seed at another rate has the same faults closer together or further apart. The last step has none: nothing of a run
    would be left to be disturbed.
    """
    if mean_steps <= 0:
        return []
    generator = random.Random(seed)
    faults, at = [], 0.0
    while True:
        at += generator.expovariate(1.0) * mean_steps
        step = max(math.ceil(at), faults[-1].step + 1 if faults else 1)
        kind = generator.choices([*SHARES], [*SHARES.values()])[0]
        rank = generator.randrange(ranks)
        if step >= steps:
            return faults
        faults.append(Fault(step, kind, rank))


def young_steps(save_s: float, step_s: float, mean_steps: float) -> int:
    """Return how many steps apart saves should be: sqrt(2 x cost of a save x mean time between faults), by Young
    (Communications of the ACM 17, 1974), in steps, at least 1.

    Raises ValueError unless a step takes time and there are faults.
    """
    if step_s <= 0 or mean_steps <= 0:
        raise ValueError("Young's formula needs steps that take time, and faults")
    return max(1, round(math.sqrt(2 * save_s * mean_steps * step_s) / step_s))
