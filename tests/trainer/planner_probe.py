"""What `test_planner_memory.py` holds estimates against: called where ranks can be forked, by `Ranks.call`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from tests.trainer.parameter_groups import parameter_groups
from trainmaster import models, parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.optim.optimizer import ShardOptimizer
from trainmaster.parallel.local_shard import local
from trainmaster.tools.parity import Row, example, run

CONTEXT = 64
OPTIONS = {"layers": 4, "width": 64, "context": CONTEXT}
MICRO = 2
UNTRACKED = {"pipeline-zero-bubble"}
"""The tracker's hooks on gradients are refused by a backward pass that is cut in two."""


class Tracker(MemTracker):
    """torch's tracker of all storages that operations make, by kind; without its statistics of modules, which allow
    no second micro-batch."""

    activations = 0
    """Bytes made by forward passes, at the worst moment of backward passes: what was kept for these."""

    def _nothing(self, *_: Any) -> None:
        pass

    _pre_fw_hook = _post_fw_hook = _pre_bw_hook = _post_bw_hook = _nothing

    def _update_peak_stats(self, peak_state: Any) -> None:
        super()._update_peak_stats(peak_state)
        if self._mod_tracker.is_bw:
            kept = sum(numbers[_MemRefType.ACT] for numbers in self._curr_mem_snap.values())
            self.activations = max(self.activations, kept)


def compressed(method: str) -> dict[str, Any]:
    return {"communication": {"compression": {"method": method}}}


MUON: dict[str, Any] = {"optimizer": {"name": "muon"}}
HSDP = {"dpReplicate": 2, "dpShard": 2}
REVERSIBLE, STREAMS = {"recompute": "Reversible"}, {"reversible": True}
ROWS = [
    Row("replicate-accumulated", {"dpReplicate": 2}, 2),
    Row("shard", {"dpShard": 2}),
    Row("shard-padded", {"dpShard": 3}, 2),
    Row("shard-llama", {"dpShard": 2}, 1, "llama"),
    Row("hsdp", HSDP, 2),
    Row("zero-1", {"dpShard": 2, "sharding": {"stage": 1}}, 2),
    Row("zero-2", {"dpShard": 2, "sharding": {"stage": 2}}, 2),
    Row("tensor", {"tp": 2}),
    Row("tensor-whole-sequence", {"tp": 2, "tensor": {"sequence": False, "vocabulary": False}}, 1, "llama"),
    Row("context", {"cp": 2}),
    Row("context-ulysses", {"cp": 2, "context": {"method": "Ulysses"}}, 1, "llama"),
    Row("pipeline", {"pp": 2}, 4),
    Row("pipeline-gpipe", {"pp": 2, "pipeline": {"schedule": "GPipe"}}, 4),
    Row("pipeline-interleaved", {"pp": 2, "pipeline": {"schedule": "Interleaved1F1B"}}, 4),
    Row("pipeline-zero-bubble", {"pp": 2, "pipeline": {"schedule": "ZBV"}}, 4),
    Row("expert-sharded", {"dpShard": 4, "ep": 2}, 1, "moe"),
    Row("expert-tensor", {"dpShard": 2, "tp": 2, "ep": 2}, 1, "moe"),
    Row("shard-tensor", {"dpShard": 2, "tp": 2}),
    Row("pipeline-shard", {"pp": 2, "dpShard": 2}, 4),
    Row("pipeline-context", {"pp": 2, "cp": 2}, 4),
    Row("recompute", {"dpShard": 2}, training={"recompute": "Full"}),
    Row("recompute-products-kept", {"dpShard": 2}, 1, "llama", training={"recompute": "Selective"}),
    Row("recompute-pipeline", {"pp": 2}, 4, training={"recompute": "Full"}),
    Row("reversible", {"dpShard": 2}, training=REVERSIBLE, options=STREAMS),
    Row("reversible-llama", {"dpReplicate": 2}, 1, "llama", training=REVERSIBLE, options=STREAMS),
    Row("reversible-tensor", {"tp": 2}, training=REVERSIBLE, options=STREAMS),
    Row("fp8", {"dpShard": 2}, training={"precision": "fp8"}),
    Row("fp8-products-kept", {"dpShard": 2}, 1, "llama", training={"precision": "fp8", "recompute": "Selective"}),
    Row("compressed", {"dpReplicate": 2}, 2, training=compressed("TopK")),
    Row("compressed-powersgd-hsdp", HSDP, 1, "llama", training=compressed("PowerSGD")),
    Row("compressed-fp16-pipeline", {"dpReplicate": 2, "pp": 2}, 4, training=compressed("fp16")),
    Row("muon", {"dpReplicate": 2}, training=MUON),
    Row("muon-llama", {"dpShard": 3}, 1, "llama", training=MUON),
    Row("muon-shard-tensor", {"dpShard": 2, "tp": 2}, training=MUON),
    Row("muon-experts", {"dpShard": 4, "ep": 2}, 1, "moe", training=MUON),
    Row("compressed-experts", {**HSDP, "ep": 2}, 1, "moe", training=compressed("PowerSGD")),
]


def config(folder: Path, row: Row, **changes: Any) -> TrainingConfig:
    found = example(folder, row)
    options = {**found.model.options, **OPTIONS}
    model = found.model.model_copy(update={"options": options})
    degrees = row.config.resolve(row.ranks)
    share = degrees["dpReplicate"] * degrees["dpShard"]
    batch = found.batch.model_copy(update={"global_": MICRO * row.accumulation * share, "micro": MICRO})
    return found.model_copy(update={"model": model, "batch": batch, **changes})


def measured(config: TrainingConfig, row: Row, rank: int) -> dict[str, int]:
    """Bytes on this rank: of tensors that are there when gradients are complete, and at the worst moment of a step."""
    model = models.build(config.model, config.seed)
    shape = parallel.StepShape(CONTEXT, MICRO, row.accumulation)
    spread = parallel.of_job(model, config, row.ranks, "cpu", shape)
    reducer = spread.reducer
    optimizer = ShardOptimizer(spread.model, config.optimizer)
    step(spread, row)
    if optimizer.joins:
        optimizer.orthogonalize(None)
    optimizer.step(0.1)
    spread.completed()
    kept = [*reducer.memory()] if reducer is not None else []
    saved = [local(shard) for shard in reducer.checkpoint_shards().values()] if reducer is not None else []
    worst = {}
    if row.name in UNTRACKED:
        step(spread, row)
    else:
        first = tracked(spread, optimizer, row, kept)
        spread.completed()
        spread.model.zero_grad()
        second = tracked(spread, optimizer, row, kept)
        worst = {kind: min(first[kind], second[kind]) for kind in first}
    parameters = [*spread.model.parameters()]
    gradients = [p.grad for p in spread.model.parameters() if p.grad is not None]
    assert len(gradients) == len(parameters)
    states = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "parameters": storage(parameters),
        "gradients": storage(gradients),
        "optimizer": storage(states),
        "compression": storage(kept),
        "saved_compression": sum(shard.nbytes for shard in saved),
        "sent": reducer.sent[0] if reducer is not None else 0,
        **worst,
    }


def tracked(
    spread: parallel.Parallel, optimizer: ShardOptimizer, row: Row, kept: Iterable[torch.Tensor]
) -> dict[str, int]:
    """Bytes at the worst moment of a step.

    A thread of gloo may hold the buffers of a collective for a moment after the wait for it has ended. So the smaller
    number of two steps is the right one.
    """
    tracker = Tracker()
    tracker.track_external(spread.model, optimizer.inner, *gathered(spread), *kept)
    with tracker:
        step(spread, row)
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return {"activations": tracker.activations, "peak": peak["Total"]}


def gathered(spread: parallel.Parallel) -> list[torch.Tensor]:
    """The tensors that shards are gathered into. Their storages are empty between two uses."""
    roots = spread.pipeline.stages if spread.pipeline else [spread.model]
    modules = [m for root in roots for m in root.modules() if isinstance(m, FSDPModule)]
    groups = [group for module in modules for group in parameter_groups(module)]
    return [out for group in groups for p in group.fsdp_params for out in p.all_gather_outputs]


def step(spread: parallel.Parallel, row: Row) -> None:
    whole = torch.randint(0, 256, (MICRO, CONTEXT + 1))
    batches = [(spread.own(whole[:, :-1]), spread.own(whole[:, 1:]))] * row.accumulation
    spread.forward_backward(batches, row.accumulation, 1.0)


def storage(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages that these lie in, each counted once."""
    with torch.no_grad():
        local = [x.to_local() if isinstance(x, DTensor) else x for x in tensors]
    return sum({x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in local}.values())


@cache
def row(name: str) -> list[dict[str, int]]:
    """What `measured` finds on each rank of this row."""
    (found,) = (row for row in ROWS if row.name == name)
    with tempfile.TemporaryDirectory() as folder:
        return run(found, config(Path(folder), found), work=measured)
