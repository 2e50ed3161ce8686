"""Tokens/s of our trainer beside hand-written torch, Hugging Face Accelerate and DeepSpeed: the same model, weights,
samples, batch, AdamW and clipping, on two ranks.

    python -m benchmarks.trainer [--starts 12] [--rounds 4] [--steps 4] [--rows ddp] [--systems torch] [--no-write]

All systems of a row run at once and take turns: one trains a block of steps while the others wait. The blocks of a
round follow each other, in an order that changes from round to round, so that a machine whose speed drifts drifts for
all. After some rounds all are started anew: a process that happens to lie well in memory is faster by percents for as
long as it lives, so a start, not a block, is what a ratio is taken of. Ours is the whole loop as a job would have it:
progress record, channel, metrics, a check of each loss.

Beside wall time there is CPU time, which tells apart what a system computes and what it waits for. After the warm-up
the losses of all systems are compared: who trains something else is refused. Prints, for each other
system, the ratio of our tokens/s to its own, with the lower end of the one-sided 95 % interval. Goal: 0.97 at least,
in each row, beside each system.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from benchmarks.ports import free_port
from benchmarks.record import Case, name_of, write
from benchmarks.turns import Block, Turns, lower_bound

WORLD = 2
WARM_UP = 10  # steps: longer than any system's first steps differ from its later ones
GOAL = 0.97
OURS = "trainmaster"
ROWS: dict[str, dict[str, Any]] = {
    "ddp": {"dpReplicate": WORLD},
    "fsdp2": {"dpShard": WORLD},
    "tp": {"tp": WORLD},
    "tp whole": {"tp": WORLD, "tensor": {"sequence": False}},
    "pp": {"pp": WORLD},
}
SYSTEMS = (OURS, "torch", "accelerate", "deepspeed")
CANNOT = {
    ("fsdp2", "accelerate"): "on CPU it ignores its fsdp_plugin and replicates",
    ("tp", "accelerate"): "it splits models of the transformers package alone",
    ("tp whole", "accelerate"): "it splits models of the transformers package alone",
    ("tp", "deepspeed"): "it doesn't slice sequences between matrices",
    ("pp", "accelerate"): "its pipelines are for inference alone",
}
"""Why a system doesn't run in a row."""
ALIKE = 1e-4  # relative difference of losses after the warm-up: sums in another order come to 1e-5 or so
UNLIKE = {("pp", "deepspeed"): 1e-2}  # it clips each stage by that stage's own norm
"""The same, where a system can't be told to train the same."""


def config(row: str, sizes: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": {
            "name": "gpt",
            "options": {"layers": sizes.layers, "width": sizes.width, "heads": 4, "context": sizes.context},
        },
        "data": {"path": "@stdlib"},
        "device": "CPU",
        "steps": WARM_UP + sizes.rounds * sizes.steps,
        "batch": {"global": sizes.batch},
        "parallelism": ROWS[row],
        "optimizer": {"lr": 1e-3, "schedule": "Constant"},
        "checkpoint": {"every": 10**9},
    }


class Rank(Protocol):
    """What a world needs of the process of a rank."""

    def kill(self) -> None: ...

    def wait(self) -> int: ...


def start_rank(arguments: list[str], environment: dict[str, str], ends: tuple[int, int], output: Path) -> Rank:
    """Start a rank as a process of its own, which lies in memory as chance has it. `ends`: descriptors of its turns."""
    with open(output, "wb") as file:
        command = [sys.executable, "-m", "benchmarks.trainer_systems", *arguments]
        return subprocess.Popen(command, env=environment, pass_fds=ends, stdout=file, stderr=file)


class World:
    """The ranks of one system, each a process of its own."""

    def __init__(self, system: str, row: str, sizes: argparse.Namespace) -> None:
        self.system, self.row = system, row
        self._tokens = sizes.steps * sizes.batch * sizes.context
        self._folder = tempfile.TemporaryDirectory()
        self._turns = Turns(WORLD)
        self._port = port = free_port()
        common = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(WORLD),
            "LOCAL_WORLD_SIZE": str(WORLD),
            "LOCAL_SIZE": str(WORLD),  # DeepSpeed's name for it
            "OMP_NUM_THREADS": "1",
            "TRAINMASTER_CONFIG": json.dumps(config(row, sizes)),
        }
        self._ranks = [self._start(rank, common, sizes.steps) for rank in range(WORLD)]
        self._turns.started()

    def warm(self) -> float:
        """Waits for the end of the warm-up; returns its last step's loss."""
        return statistics.mean(block.loss for block in self._finished() if not math.isnan(block.loss))

    def train(self) -> tuple[float, float]:
        """Train one block; returns (tokens/s by the slowest rank's time, tokens/s of CPU time of all ranks)."""
        self._turns.release()
        blocks = self._finished()
        seconds = max(block.seconds for block in blocks)
        return self._tokens / seconds, self._tokens / sum(block.cpu_seconds for block in blocks)

    def end(self) -> None:
        """Whatever the ranks do."""
        self._turns.close()
        for process in self._ranks:
            process.kill()
            process.wait()
        # DeepSpeed's collectives in shared memory leave that behind, of ranks that are killed.
        for buffer in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{self._port}_*"):
            buffer.unlink()
        self._folder.cleanup()

    def _start(self, rank: int, common: dict[str, str], block: int) -> Rank:
        ends = self._turns.ends(rank)
        arguments = [self.system, self.row, WARM_UP, block, *ends, self._folder.name]
        environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        return start_rank([*map(str, arguments)], environment, ends, self._output(rank))

    def _output(self, rank: int) -> Path:
        return Path(self._folder.name) / f"output-{rank}"

    def _finished(self) -> list[Block]:
        try:
            return self._turns.finished()
        except EOFError:
            said = "\n".join(self._output(rank).read_text(errors="replace")[-3000:] for rank in range(WORLD))
            raise SystemExit(f"{said}\ntrainer: a rank of {self.row}/{self.system} failed, see above") from None


@dataclass(frozen=True)
class Samples:
    """Of one system in a row, one of each round of each start."""

    speed: Case
    work: Case

    @classmethod
    def of(cls, row: str, system: str) -> Samples:
        return cls(Case(row, system, "tokens/s"), Case(f"{row} CPU", system, "tokens/CPU s"))


def compare(row: str, systems: list[str], sizes: argparse.Namespace) -> list[Samples]:
    """Samples of all systems, alternating. Raises SystemExit if they don't train the same."""
    samples = {system: Samples.of(row, system) for system in systems}
    for start in range(sizes.starts):
        _start(row, systems[start % len(systems) :] + systems[: start % len(systems)], sizes, samples)
    return [*samples.values()]


def _start(row: str, systems: list[str], sizes: argparse.Namespace, samples: dict[str, Samples]) -> None:
    worlds: dict[str, World] = {}
    try:
        for system in systems:
            worlds[system] = World(system, row, sizes)
        losses = {system: world.warm() for system, world in worlds.items()}
        for system, loss in losses.items():
            if not abs(loss / losses[OURS] - 1) <= UNLIKE.get((row, system), ALIKE):
                raise SystemExit(f"trainer: {row}: the systems don't train the same, their losses are {losses}")
        for turn in range(sizes.rounds):
            # Each system is as often early as late in a round.
            order = systems[turn % len(systems) :] + systems[: turn % len(systems)]
            for system in order:
                speed, work = worlds[system].train()
                samples[system].speed.samples.append(speed)
                samples[system].work.samples.append(work)
    finally:
        for world in worlds.values():
            world.end()


def judge(samples: list[Samples], starts: int) -> bool:
    """Prints a row, and whether ours reaches the goal beside each other system."""
    ours, *others = samples
    good = True
    speeds = ", ".join(f"{each.speed.system} {each.speed.median:,.0f}" for each in samples)
    print(f"{ours.speed.case}: {speeds} tokens/s", flush=True)
    for other in others:
        ratios = ratios_of(ours.speed, other.speed, starts)
        bound = lower_bound(ratios)
        good = good and bound >= GOAL
        print(
            f"  / {other.speed.system}: {statistics.median(ratios):.3f}, lower 95 % bound {bound:.3f}"
            f"{'' if bound >= GOAL else f', below the goal of {GOAL}'}; by CPU time "
            f"{statistics.median(ratios_of(ours.work, other.work, starts)):.3f}",
            flush=True,
        )
    return good


def ratios_of(ours: Case, other: Case, starts: int) -> list[float]:
    """Of each start, the geometric mean of its rounds."""
    logs = [math.log(ratio) for ratio in ours.over(other)]
    rounds = len(logs) // starts
    return [math.exp(statistics.mean(logs[at : at + rounds])) for at in range(0, len(logs), rounds)]


def present(row: str, wanted: list[str]) -> list[str]:
    """The systems of a row; says why some are not among them."""
    found = []
    for system in wanted:
        reason = CANNOT.get((row, system))
        if reason is None and system in ("accelerate", "deepspeed") and importlib.util.find_spec(system) is None:
            reason = "it is not installed; `make bench-trainer` installs it"
        if reason is None:
            found.append(system)
        else:
            print(f"{row}: without {system}: {reason}", flush=True)
    return found


def compile_ahead() -> None:
    """What DeepSpeed compiles when it is first used: before there are ranks."""
    command = [sys.executable, "-m", "benchmarks.trainer_systems.deepspeeded"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr[-3000:]
        raise SystemExit(f"{said}\ntrainer: DeepSpeed can't compile its extension; --systems leaves it out")


def read(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.trainer", description="Tokens/s of our trainer beside other systems, on two ranks."
    )
    parser.add_argument("--starts", type=int, default=12, help="of all systems of a row (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="blocks of each system in a start (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="of a block (default: %(default)s)")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS[1:], default=SYSTEMS[1:], help="beside ours")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step (default: %(default)s)")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    given = parser.parse_args(arguments)
    if given.starts < 10:
        parser.error(f"--starts {given.starts}: a bound needs at least 10")
    for name in ("rounds", "steps"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} {getattr(given, name)}: at least 1 is needed")
    return given


def main(arguments: list[str] | None = None) -> int:
    given = read(arguments)
    if "deepspeed" in given.systems and importlib.util.find_spec("deepspeed") is not None:
        compile_ahead()
    results, good = [], True
    for row in given.rows:
        samples = compare(row, present(row, [OURS, *given.systems]), given)
        good = judge(samples, given.starts) and good
        results += [case for each in samples for case in (each.speed, each.work)]
        if not given.no_write:  # after each row: the next one takes minutes
            versions = {case.system: metadata.version(case.system) for case in results}
            name = name_of("trainer", [*given.rows, *given.systems], [*ROWS, *SYSTEMS[1:]])
            print(f"written to {write(name, results, starts=given.starts, **versions)}", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
