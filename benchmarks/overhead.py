"""Tokens/s of our loop beside a hand-written minimal loop of the same model and the same parallelism calls, and of a
loop that saves each step to memory beside one that doesn't.

    python -m benchmarks.overhead [--pairs 48] [--steps 10] [--cases replicate shard memory]

Both run at once, two ranks each on loopback, and take turns: one trains a block of steps while the other waits. The
blocks of a pair follow each other, in alternating order, so that a machine whose speed drifts drifts for both. Our
loop runs as a job would have it: progress record, channel, metrics, and a checkpoint in the middle of every fourth
block (each eight seconds or so); the other has nothing of that. Saves to memory are turned on and off in one and the
same ranks, since processes that do the same differ by more than these cost; none goes to storage meanwhile. Prints the
ratio of each case with the lower end of its one-sided 95 % interval. Goals: at least 0.97, and 0.99 for saves to memory
where a rank has 3,072 tokens a step.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import tempfile
import traceback
from dataclasses import dataclass
from typing import Any

from benchmarks.ports import free_port
from benchmarks.record import Case, name_of, write
from benchmarks.trainer_systems import ours
from benchmarks.turns import Meter, Turns, lower_bound
from trainmaster.host import processes

WORLD = 2
WARM_UP = 10  # steps, at least
CHECKPOINT_BLOCKS = 4
CONTEXT = 128


@dataclass(frozen=True)
class Compared:
    """Two systems that train the same."""

    mesh: dict[str, int]
    sequences: int  # in each step, over all ranks
    ours: str
    other: str
    goal: float
    same_ranks: bool = False  # both are

    def order(self, pair: int) -> list[str]:
        """Both orders have as many of the blocks with a checkpoint."""
        return sorted((self.ours, self.other), reverse=bool((pair + pair // CHECKPOINT_BLOCKS) % 2))


CASES = {
    "replicate": Compared({"dpReplicate": WORLD}, 16, "trainmaster", "minimal", 0.97),
    "shard": Compared({"dpShard": WORLD}, 16, "trainmaster", "minimal", 0.97),
    "memory": Compared({"dpShard": WORLD}, 48, "saved to memory at each step", "trainmaster", 0.99, same_ranks=True),
}


def config(compared: Compared, steps: int, block: int) -> dict[str, Any]:
    return {
        "model": {"options": {"layers": 4, "width": 128, "heads": 4, "context": CONTEXT}},
        "data": {"path": "@stdlib"},
        "device": "CPU",
        "steps": steps,
        "batch": {"global": compared.sequences},
        "parallelism": compared.mesh,
        "optimizer": {"lr": 1e-3},
        # In the middle of a block, so that what it takes falls into our own time.
        "checkpoint": {"every": steps if compared.same_ranks else CHECKPOINT_BLOCKS * block, "keep": 2},
    }


def saving(rank: int, folder: str, meter: Meter) -> None:
    """One rank of our loop with a memory tier, and every step of every other block in it."""
    from trainmaster.checkpoint.memory.memory_save_interval import Interval
    from trainmaster.contract.wire import environment
    from trainmaster.train import loop

    compared, one_step = CASES["memory"], loop.Training.one_step

    def due(self: Interval, step: int) -> bool:
        block = (step - meter.first - 1) // meter.block
        return compared.order(block // 2)[block % 2] == compared.ours

    def settled(self: loop.Training) -> None:
        one_step(self)
        if (self.step - meter.first) % meter.block == 0:
            self.session.settle()  # so that the next block gets nothing of what this one has begun

    Interval.due = due  # type: ignore[method-assign]
    loop.Training.one_step = settled  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        os.environ.update({environment.RAM_DIR: memory, environment.RAM_BUDGET: str(2**30)})
        ours.train(rank, folder, meter)


def minimal(rank: int, folder: str, meter: Meter) -> None:
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
    sharded = "dpShard" in json.loads(os.environ["TRAINMASTER_CONFIG"])["parallelism"]
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("dp",))
    model = models.build(given.model, given.seed)
    for block in model.blocks:
        fully_shard(block, mesh=mesh) if sharded else replicate(block, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False) if sharded else replicate(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.optimizer.lr, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    source = data.build(given)
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
        meter.step(step)
    dist.destroy_process_group()


class World:
    """The ranks of one system, forked from this process, which has imported all and computed nothing.

    They die with it.
    """

    def __init__(self, system: str, case: str, blocks: int, block: int) -> None:
        self.system, self.case, self.block = system, case, block
        self._tokens = block * CASES[case].sequences * CONTEXT
        # Checkpoints come in the middle of blocks.
        self.first = WARM_UP // block * block + block + block // 2
        self._folder = tempfile.TemporaryDirectory()
        os.environ.update(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free_port()),
            WORLD_SIZE=str(WORLD),
            TRAINMASTER_CONFIG=json.dumps(config(CASES[case], self.first + blocks * block, block)),
        )
        self._turns = Turns(WORLD)
        self._ranks = [self._fork(rank) for rank in range(WORLD)]
        self._turns.started()
        self._finished()

    def train(self) -> float:
        """Train one block; returns tokens/s."""
        self._turns.release()
        return self._tokens / self._finished()

    def end(self) -> None:
        """Let the ranks finish."""
        self._turns.release()
        failed = [os.waitpid(pid, 0)[1] for pid in self._ranks]
        self._turns.close()
        self._folder.cleanup()
        if any(failed):
            raise SystemExit(f"overhead: a rank of {self.case}/{self.system} failed")

    def _finished(self) -> float:
        """Seconds that the slowest rank took."""
        try:
            return max(block.seconds for block in self._turns.finished())
        except EOFError:
            raise SystemExit(f"overhead: a rank of {self.case}/{self.system} failed") from None

    def _fork(self, rank: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            processes.die_with_parent(parent)  # forks have all ends of the pipes, so none is closed when it ends
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            meter = Meter(self.first, self.block, *self._turns.ends(rank))
            SYSTEMS[self.system](rank, self._folder.name, meter)
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except Exception:  # noqa: BLE001 a fork must not run on into the caller
            traceback.print_exc()
        finally:
            os._exit(code)


SYSTEMS = {"trainmaster": ours.train, "saved to memory at each step": saving, "minimal": minimal}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--pairs", type=int, default=48)
    arguments.add_argument("--steps", type=int, default=10, help="of a block (default: 10)")
    arguments.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    given = arguments.parse_args()
    if given.pairs < 10 or given.steps < 4:
        arguments.error("at least 10 pairs of blocks of at least 4 steps tell something")
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTORCH_NVML_BASED_CUDA_CHECK="1")
    for name in ("trainmaster.train.loop", "torch._dynamo"):  # the second is imported by the first FSDP2 step anyway
        importlib.import_module(name)
    results = []
    good = True
    for name in given.cases:
        compared = CASES[name]
        both = {system: Case(name, system, "tokens/s") for system in (compared.ours, compared.other)}
        if compared.same_ranks:
            worlds = dict.fromkeys(both, World(compared.ours, name, 2 * given.pairs, given.steps))
        else:
            worlds = {system: World(system, name, given.pairs, given.steps) for system in both}
        for pair in range(given.pairs):
            for system in compared.order(pair):
                both[system].samples.append(worlds[system].train())
        for world in {*worlds.values()}:
            world.end()
        ratios = both[compared.ours].over(both[compared.other])
        bound = lower_bound(ratios)
        good = good and bound >= compared.goal
        medians = {system: f"{case.median:.0f}" for system, case in both.items()}
        print(
            f"{name}: tokens/s {medians}, ratio {statistics.median(ratios):.3f}, lower 95 % bound {bound:.3f}",
            flush=True,
        )
        results += both.values()
    print(
        f"written to {write(name_of('overhead', given.cases, CASES), results)}; load average {os.getloadavg()[0]:.1f}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
