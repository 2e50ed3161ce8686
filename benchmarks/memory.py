"""What a rank's tensors take with each technique that saves memory, as torch's own tracker counts them.

    python -m benchmarks.memory [--no-write]

Four ranks train two steps of a GPT; in the second one every storage is counted, by what it is for. A sample is a rank.
Bytes of tensors, not of an allocator's pages nor of the process; so they are the same on a GPU. What offloading keeps
on the host isn't counted in the peak: parameters and optimizer states; of gradients, which come and go, all are.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.record import Case, write
from tests.trainer.planner_probe import Tracker, gathered, storage
from trainmaster import models, parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.optim.optimizer import ShardOptimizer
from trainmaster.tools.parity import Row, run

RANKS = 4
CONTEXT = 256
MICRO = 4  # sequences of a rank and micro-batch
OPTIONS = {"layers": 8, "heads": 8, "width": 256, "context": CONTEXT}
KINDS = ("parameters", "gradients", "optimizer", "compression", "activations", "peak")


def row(name: str, parallelism: dict[str, Any], accumulation: int = 1, **training: Any) -> Row:
    return Row(name, parallelism, accumulation, training=training)


def reversible(name: str, parallelism: dict[str, Any]) -> Row:
    """Of the model in two streams, which is of the same size."""
    return Row(name, parallelism, training={"recompute": "Reversible"}, options={"reversible": True})


REPLICAS, SHARDS = {"dpReplicate": RANKS}, {"dpShard": RANKS}
OFFLOADED = {**SHARDS, "sharding": {"offload": True}}
POWERSGD = {"compression": {"method": "PowerSGD"}}
ROWS = [
    row("replicas", REPLICAS),
    row("replicas, recompute Selective", REPLICAS, recompute="Selective"),
    row("replicas, recompute Full", REPLICAS, recompute="Full"),
    reversible("replicas, recompute Reversible", REPLICAS),
    row("replicas, bf16", REPLICAS, precision="bf16"),
    row("replicas, PowerSGD", REPLICAS, communication=POWERSGD),
    row("ZeRO 1", {**SHARDS, "sharding": {"stage": 1}}),
    row("ZeRO 2", {**SHARDS, "sharding": {"stage": 2}}),
    row("ZeRO 3", SHARDS),
    row("ZeRO 3, recompute Full", SHARDS, recompute="Full"),
    reversible("ZeRO 3, recompute Reversible", SHARDS),
    row("ZeRO 3, offload", OFFLOADED),
    row("ZeRO 3, offload, recompute Full", OFFLOADED, recompute="Full"),
    row("ZeRO 3, bf16, recompute Full", SHARDS, recompute="Full", precision="bf16"),
    row("tensor parallel", {"tp": RANKS}),
    row("tensor parallel, recompute Full", {"tp": RANKS}, recompute="Full"),
    reversible("tensor parallel, recompute Reversible", {"tp": RANKS}),
    row("context parallel", {"cp": RANKS}),
    row("pipeline, 1F1B, 8 micro-batches", {"pp": RANKS}, 8),
]


def config(row: Row) -> TrainingConfig:
    degrees = row.config.resolve(row.ranks)
    shares = degrees["dpReplicate"] * degrees["dpShard"]
    # The same work of a step for all: RANKS x MICRO sequences.
    whole = RANKS * MICRO
    return TrainingConfig.model_validate(
        {
            "model": {"name": "gpt", "options": {**OPTIONS, **row.options}},
            "data": {"path": "@stdlib"},
            "device": "CPU",
            "steps": 2,
            "batch": {"global": whole, "micro": whole // shares // row.accumulation},
            "parallelism": dict(row.parallelism),
            **row.training,
        }
    )


def measured(config: TrainingConfig, row: Row, rank: int) -> dict[str, int]:
    """Bytes on this rank."""
    import torch
    from torch.distributed._tools.mem_tracker import _MemRefType

    micro, count = config.accumulation(row.ranks)
    shape = parallel.StepShape(CONTEXT, micro, count)
    spread = parallel.of_job(models.build(config.model, config.seed), config, row.ranks, "cpu", shape)
    optimizer = ShardOptimizer(spread.model, config.optimizer)

    def step() -> None:
        whole = torch.randint(0, 256, (micro, CONTEXT + 1))
        spread.forward_backward([(spread.own(whole[:, :-1]), spread.own(whole[:, 1:]))] * count, count, 1.0)

    step()
    if optimizer.joins:
        optimizer.orthogonalize(None)
    optimizer.step(0.1)
    spread.completed()
    kept = [*spread.reducer.memory()] if spread.reducer is not None else []
    tracker = Tracker()
    tracker.track_external(spread.model, optimizer.inner, *gathered(spread), *kept)
    with tracker:
        step()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    sharding = config.parallelism.sharding
    on_host = [_MemRefType.PARAM, _MemRefType.OPT] if sharding is not None and sharding.offload else []
    states = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "parameters": storage(p.data for p in spread.model.parameters()),
        "gradients": storage(p.grad for p in spread.model.parameters() if p.grad is not None),
        "optimizer": storage(states),
        "compression": storage(kept),
        "activations": tracker.activations,
        "peak": peak["Total"] - sum(peak[kind] for kind in on_host),
    }


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    given = arguments.parse_args()
    cases = []
    for each in ROWS:
        found = run(each, config(each), work=measured)
        cases += [Case(kind, each.name, "bytes", [rank[kind] for rank in found]) for kind in KINDS]
        most = {kind: max(rank[kind] for rank in found) / 2**20 for kind in KINDS}
        sizes = " ".join(f"{kind} {size:7.1f}" for kind, size in most.items())
        print(f"{each.name:34} {sizes} MiB", flush=True)
    if not given.no_write:
        print(f"written: {write('memory', cases)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
