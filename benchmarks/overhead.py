"""Tokens/s of our loop beside a hand-written minimal loop of the same model and the same parallelism calls.

    python -m benchmarks.overhead [--pairs 24] [--steps 36]

Each sample is one run of two ranks on loopback; the runs of a pair follow each other, in alternating order, so that
a machine whose speed drifts drifts for both. A rank's rate counts the steps after its warm-up. Our loop runs as a job
would have it: progress record, channel, metrics, checkpoints on; the other has nothing of that. Prints the ratio of
each case with the lower end of its one-sided 95 % interval. Goal: at least 0.97.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import socket
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.record import Case, write

WORLD = 2
WARM_UP = 10
GOAL = 0.97
CASES = {"replicate": {"dp_replicate": WORLD}, "shard": {"dp_shard": WORLD}}
# One-sided 95 % quantiles of Student's t by degrees of freedom; beyond the last one, of the normal distribution.
T95 = {9: 1.833, 10: 1.812, 11: 1.796, 12: 1.782, 13: 1.771, 14: 1.761, 15: 1.753, 19: 1.729, 23: 1.714, 24: 1.711, 29: 1.699}


def config(mesh: dict[str, int], steps: int) -> dict[str, Any]:
    return {
        "model": {"options": {"layers": 4, "width": 128, "heads": 4, "context": 128}},
        "data": {"path": "@stdlib"},
        "steps": steps,
        "batch": {"global": 16},
        "parallelism": mesh,
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"every": max(1, steps // 2)},
    }


def ours(rank: int, folder: str) -> None:
    """One rank of our loop, with a record and a channel as an agent gives them."""
    from trainmaster import loop
    from trainmaster.contract.wire import ProgressRecord, environment
    from trainmaster.contract.wire.channel import Channel

    record = ProgressRecord.create(1, rank)
    mine, agents = Channel.pair()
    os.environ[environment.PROGRESS_FD] = str(record.fd)
    os.environ[environment.CHANNEL_FD] = str(mine.fileno())
    os.environ[environment.CHECKPOINT_DIR] = os.path.join(folder, "checkpoints")
    os.environ[environment.OUTPUT_DIR] = folder
    timed = loop.Training.one_step
    meter = Meter(rank, folder)

    def one_step(self: Any) -> None:
        timed(self)
        meter.step(self.step, 16 * 128)

    loop.Training.one_step = one_step  # type: ignore[method-assign]
    try:
        loop.main()
    finally:
        agents.close()


def minimal(rank: int, folder: str) -> None:
    """What one would write by hand."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from trainmaster import data, models
    from trainmaster.contract.config import TrainingConfig

    given = TrainingConfig.model_validate_json(os.environ["TRAINMASTER_CONFIG"])
    dist.init_process_group("gloo")
    sharded = "dp_shard" in json.loads(os.environ["TRAINMASTER_CONFIG"])["parallelism"]
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("dp",))
    model = models.build(given.model, given.seed)
    for block in model.blocks:
        fully_shard(block, mesh=mesh) if sharded else replicate(block, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False) if sharded else replicate(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.optimizer.lr, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    source = data.build(given)
    meter = Meter(rank, folder)
    share = given.batch.global_ // WORLD
    for step in range(1, given.steps + 1):
        consumed = (step - 1) * given.batch.global_
        batch = source.batch(consumed, range(rank * share, (rank + 1) * share))
        loss = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        meter.step(step, 16 * 128)
    dist.destroy_process_group()


class Meter:
    """Tokens/s from the end of the warm-up to the last step, written by rank 0."""

    def __init__(self, rank: int, folder: str) -> None:
        self.rank, self.path = rank, Path(folder, "rate")
        self.began = 0.0
        self.tokens = 0

    def step(self, step: int, tokens: int) -> None:
        now = time.perf_counter()
        if step == WARM_UP:
            self.began = now
        elif step > WARM_UP and self.rank == 0:
            self.tokens += tokens
            self.path.write_text(str(self.tokens / (now - self.began)))


def run(system: str, case: str, steps: int) -> float:
    """Tokens/s of one run. Its ranks are forked from this process, which has imported all and computed nothing."""
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            WORLD_SIZE=str(WORLD),
            TRAINMASTER_CONFIG=json.dumps(config(CASES[case], steps)),
        )
        ranks = [_fork(system, rank, folder) for rank in range(WORLD)]
        if any([os.waitpid(pid, 0)[1] for pid in ranks]):  # noqa: C419 all of them are to be waited for
            raise SystemExit(f"overhead: a rank of {case}/{system} failed")
        return float(Path(folder, "rate").read_text())


def _fork(system: str, rank: int, folder: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        {"trainmaster": ours, "minimal": minimal}[system](rank, folder)
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except Exception:  # noqa: BLE001 a fork must not run on into the caller
        traceback.print_exc()
    finally:
        os._exit(code)


def lower_bound(ratios: list[float]) -> float:
    """Lower end of the one-sided 95 % interval of the mean of log-ratios, as a ratio."""
    logs = [math.log(ratio) for ratio in ratios]
    quantile = T95.get(len(logs) - 1, 1.645 if len(logs) > 30 else 1.833)
    return math.exp(statistics.mean(logs) - quantile * statistics.stdev(logs) / math.sqrt(len(logs)))


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--pairs", type=int, default=24)
    arguments.add_argument("--steps", type=int, default=36)
    given = arguments.parse_args()
    if given.pairs < 10 or given.steps < 2 * WARM_UP:
        arguments.error(f"at least 10 pairs of at least {2 * WARM_UP} steps tell something")
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTORCH_NVML_BASED_CUDA_CHECK="1")
    for name in ("trainmaster.loop", "torch._dynamo"):  # the second is imported by the first FSDP2 step anyway
        importlib.import_module(name)
    results = []
    good = True
    for name in CASES:
        both = {system: Case(name, system, "tokens/s") for system in ("trainmaster", "minimal")}
        for pair in range(given.pairs):
            for system in sorted(both, reverse=bool(pair % 2)):
                both[system].samples.append(run(system, name, given.steps))
        pairs = zip(both["trainmaster"].samples, both["minimal"].samples, strict=True)
        ratios = [a / b for a, b in pairs]
        bound = lower_bound(ratios)
        good = good and bound >= GOAL
        medians = {system: f"{case.median:.0f}" for system, case in both.items()}
        print(
            f"{name}: tokens/s {medians}, ratio {statistics.median(ratios):.3f}, lower 95 % bound {bound:.3f}",
            flush=True,
        )
        results += both.values()
    print(f"written to {write('overhead', results)}; load average {os.getloadavg()[0]:.1f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
