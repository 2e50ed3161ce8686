"""The bytes that a rank sends in a step, by axis. It imports no torch.

Collectives are counted as rings: each of n ranks sends (n - 1) / n of the whole for a gather or a scattered sum, and
twice that for a sum (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009). How often FSDP gathers: ZeRO (arXiv
1910.02054, section 7).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trainmaster.contract.config import BUCKET_MIB
from trainmaster.reduce import compressed_size
from trainmaster.tools.planner.layouts import Layout
from trainmaster.tools.planner.memory_estimate import MASTER, Group, place, shard, shards


def of_shards(groups: Sequence[Group], layout: Layout, micro_batches: int) -> dict[str, float]:
    """Return the bytes of parameters and gradients over the axis shard (dpShard x cp)."""
    width = MASTER if layout.config.precision == "fp32" else 2
    sent = 0
    for group in groups:
        gathers, scatters = _calls(group, layout, micro_batches)
        for shape, is_expert in zip(group.shapes, group.experts, strict=True):
            n, _ = place(layout, 0, is_expert)
            part, _ = shard(shape, n, 0, is_expert)
            sent += group.times * (n - 1) * part * (gathers * width + scatters * MASTER)
    return {"dpShard": float(sent)} if sent else {}


def of_replicas(groups: Sequence[Group], layout: Layout) -> dict[str, float]:
    """Return the bytes of gradients over the axis dpReplicate, which are summed once in a step."""
    replicas = layout.degrees["dpReplicate"]
    if layout.compression is not None:
        sent = float(compressed_size.sent(layout.compression, shards(groups, layout, 0), replicas))
    else:
        sent = 2 * (replicas - 1) / replicas * _elements(groups, layout) * MASTER
    return {"dpReplicate": sent} if sent else {}


def collectives_of_data_parallelism(groups: Sequence[Group], layout: Layout, micro_batches: int) -> float:
    """Return the number of collectives in a step.

    Each group of shards has its gathers and its scattered sum, and replicas have a sum for each bucket. Each step has
    one more, for its loss and its norm.
    """
    if layout.ranks == 1:
        return 0.0
    replicas, found = layout.degrees["dpReplicate"], 1.0
    for group in groups:
        if any(place(layout, 0, is_expert)[0] > 1 for is_expert in group.experts):
            found += group.times * sum(_calls(group, layout, micro_batches))
    if replicas > 1:
        communication = layout.config.communication
        bucket = (communication.bucketMiB if communication is not None else BUCKET_MIB) << 20
        found += math.ceil(_elements(groups, layout) * MASTER / bucket)
    return found


def _elements(groups: Sequence[Group], layout: Layout) -> int:
    """Return the elements of the first rank's shards."""
    return sum(
        group.times * shard(shape, place(layout, 0, is_expert)[0], 0, is_expert)[0]
        for group in groups
        for shape, is_expert in zip(group.shapes, group.experts, strict=True)
    )


def _calls(group: Group, layout: Layout, micro_batches: int) -> tuple[int, int]:
    """Return how often a group's parameters are gathered in a step, and its gradients are summed and scattered."""
    once = layout.degrees["pp"] > 1
    stage = layout.sharding.stage
    gathers = 1 if once or stage < 3 else micro_batches * (1 if group.is_root else 2)
    return gathers, 1 if once or stage == 1 else micro_batches


def of_muon(groups: Sequence[Group], layout: Layout) -> dict[str, float]:
    """Return the bytes of parts of matrices that are sent to where they are whole, and back."""
    sent: dict[str, float] = {}
    tp = layout.degrees["tp"]
    for group in groups:
        for shape, is_expert in zip(group.shapes, group.experts, strict=True):
            if group.is_root or len(shape) < 2:
                continue
            n, _ = place(layout, 0, is_expert)
            part = group.times * 2 * MASTER * shard(shape, n, 0, is_expert)[1]
            in_parts = len(shape) != 3 or bool(is_expert and shape[0] % n)  # else whole experts are dealt out
            if in_parts:
                sent["dpShard"] = sent.get("dpShard", 0.0) + part * (n - 1) / n
            sent["tp"] = sent.get("tp", 0.0) + part * (tp - 1) / tp
    return {axis: bytes_ for axis, bytes_ in sent.items() if bytes_}


def of_stages(layout: Layout, stream: int, micro_batches: int) -> float:
    """Return the bytes between stages: streams of micro-batches, and the gradients of those that were received."""
    if layout.degrees["pp"] == 1:
        return 0.0
    return 2.0 * stream * micro_batches * layout.pipeline.stages_per_rank


def add(sent: dict[str, float], more: Mapping[str, float], times: int = 1) -> None:
    """Add to `sent` the bytes of `more`, `times` times, by axis."""
    for axis, bytes_ in more.items():
        sent[axis] = sent.get(axis, 0.0) + bytes_ * times


def total(sent: dict[str, float]) -> float:
    return math.fsum(sent.values())
