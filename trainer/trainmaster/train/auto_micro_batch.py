"""The largest micro-batch that fits into memory, found before the first step (`batch.autoMicro`).

It comes from the planner's estimate of a rank's memory, not from trials: on a CPU a failed trial ends the process, and
a restart would have to try again. All ranks use the size of the rank with the least memory. It depends only on limits,
not on the memory that is free now, so a resumed run computes as before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire import environment
from trainmaster.host import atomic_write, memory_reserve, own_pod, rank_memory
from trainmaster.train.process_group import World


def settle(config: TrainingConfig, world: World, kept: Path | None) -> tuple[TrainingConfig, str]:
    """Return (config with a number for batch.micro, a sentence for people or ""). All ranks must call it.

    `kept` is a file in the checkpoint folder where rank 0 stores the result, so that a restart need not compute it
    again.
    """
    if not config.batch.autoMicro:
        return config, ""
    budget = torch.tensor(_budget(world), dtype=torch.int64)
    dist.all_reduce(budget, dist.ReduceOp.MIN)
    found = torch.zeros(2, dtype=torch.int64)  # micro-batch, estimated bytes
    if world.rank == 0:
        found[:] = torch.tensor(_known(config, world.size, int(budget), kept))
    dist.all_reduce(found)
    micro, peak = found.tolist()
    batch = config.batch.model_copy(update={"micro": micro, "autoMicro": False})
    config = config.model_copy(update={"batch": batch})
    counted = f"{micro} sequence{'s' if micro > 1 else ''} x {config.accumulation(world.size)[1]}"
    words = f"micro-batch: {counted}, an estimated {_gib(peak)} of the {_gib(int(budget))} that a rank may have"
    if peak > int(budget):
        words += "; less isn't possible, so memory may run out"
    return config, words


def largest(config: TrainingConfig, ranks: int, budget: int) -> tuple[int, int]:
    """Return (micro-batch, its estimated bytes): the largest that fits into `budget` bytes of a rank, or the
    smallest."""
    from trainmaster.tools.planner.estimate import with_largest_micro_batch
    from trainmaster.tools.planner.layouts import Layout
    from trainmaster.tools.planner.machine import Machine
    from trainmaster.tools.planner.survey import Survey

    # Times are of no interest.
    machine = Machine(flops=1.0, bandwidth=1.0, memory=budget)
    estimate = with_largest_micro_batch(Layout(config, ranks), Survey(config.model), machine)
    return estimate.layout.micro_batches[0], estimate.memory.peak


def _elsewhere(config: TrainingConfig, ranks: int, budget: int) -> tuple[int, int]:
    """Return `largest`, computed in another process.

    The estimate creates the worlds of all layouts, and a process can be in only one world.
    """
    asked = json.dumps({"config": config.model_dump(mode="json"), "ranks": ranks, "budget": budget})
    command = [sys.executable, "-m", "trainmaster.train.auto_micro_batch"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the memory of a rank can't be estimated: {done.stderr.strip()[-2000:]}")
    micro, peak = json.loads(done.stdout)
    return micro, peak


def main() -> None:
    """Compute `largest` in the process that `_elsewhere` starts."""
    asked = json.load(sys.stdin)
    config = TrainingConfig.model_validate(asked["config"])
    print(json.dumps(largest(config, asked["ranks"], asked["budget"])))


def _known(config: TrainingConfig, ranks: int, budget: int, kept: Path | None) -> tuple[int, int]:
    asked = {
        name: part
        for name, part in config.model_dump(mode="json").items()
        if name in ("model", "batch", "optimizer", "parallelism", "precision", "recompute", "communication")
    }
    key = hashlib.sha256(json.dumps([asked, ranks, budget], sort_keys=True).encode()).hexdigest()
    if kept is not None:
        try:
            found = json.loads(kept.read_text())
            if found["of"] == key:
                return int(found["micro"]), int(found["peak"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # none yet, or one that was cut off
    micro, peak = _elsewhere(config, ranks, budget)
    if kept is not None:
        with contextlib.suppress(OSError):  # it is found again then
            atomic_write.write(kept, json.dumps({"of": key, "micro": micro, "peak": peak}) + "\n")
    return micro, peak


def _budget(world: World) -> int:
    """Return the bytes that the tensors of this rank may take."""
    if world.device.type == "cuda":
        return memory_reserve.usable(torch.cuda.get_device_properties(world.device).total_memory, on_device=True)
    group, in_pod = rank_memory.container(), own_pod.size()
    limit = group.limit() if group is not None else None
    on_machine = _ranks_of_machine(world)
    share = limit / in_pod if limit is not None else _machine() / on_machine
    checkpoints = int(os.environ.get(environment.RAM_BUDGET) or 0) / in_pod  # lie in the same memory
    return memory_reserve.usable(share - checkpoints, on_device=False)


def _machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _ranks_of_machine(world: World) -> int:
    """Return the number of ranks on this machine, in all containers. All ranks must call it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    mine = torch.tensor(int.from_bytes(hashlib.sha256(boot).digest()[:7], "big"))
    every = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(every, mine)
    return sum(int(other) == int(mine) for other in every)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


if __name__ == "__main__":
    main()
