"""The idle time of a pipeline and the activations that it holds, by schedule.

p ranks, m micro-batches, v stages on each rank.
"""

from __future__ import annotations

from trainmaster.contract.config import PipelineConfig


def bubble(config: PipelineConfig, p: int, m: int) -> float:
    """Return the share of a step that a rank waits, if all stages take the same time and nothing is sent.

    GPipe (arXiv 1811.06965) and 1F1B (2104.04473, section 2.2): p - 1 forwards and backwards in addition to m.
    Interleaved: v times fewer. Zero bubble (2401.10241, section 2.3): with a backward pass cut into two halves, each as
    long as a forward, a third of that is left; ZBV (section 5): nothing. DualPipeV (github.com/deepseek-ai/DualPipe,
    "cut in half"): p - 1 times F&B + B - 3W, where a rank's F, B and W are 3m of such thirds and F&B is F + B.
    """
    if p == 1:
        return 0.0
    v = config.stages_per_rank
    lost = {
        "GPipe": p - 1,
        "1F1B": p - 1,
        "Interleaved1F1B": (p - 1) / v,
        "InterleavedZeroBubble": (p - 1) / (3 * v),
        "ZBV": 0.0,
        "DualPipeV": (p - 1) / 3,
    }[config.schedule]
    return lost / (m + lost)


def held(config: PipelineConfig, p: int, m: int, rank: int) -> int:
    """Return the largest number of micro-batches, times stages, whose activations a rank holds.

    GPipe: all. 1F1B: as many as there are stages from this one to the last. Interleaved: the forwards of its warm-up
    (as torch.distributed.pipelining.schedules counts them) and one. ZBV: as many as 1F1B's first rank, on every rank
    (2401.10241, section 5). DualPipeV: one stage more.
    """
    if p == 1:
        return 1
    v = config.stages_per_rank
    each_round = m // max(1, m // p)
    found = {
        "GPipe": m,
        "1F1B": p - rank,
        "Interleaved1F1B": (v - 1) * each_round + 2 * (p - 1 - rank) + 1,
        "InterleavedZeroBubble": (v - 1) * each_round + (p - 1 - rank) + 1,
        "ZBV": 2 * p,
        "DualPipeV": 2 * p + 1,
    }[config.schedule]
    return min(found, m * v)
