"""Measure the speed of a Llama of 1.2 billion parameters on one device: eager, compiled and in fp8, each beside a loop
that is written by hand.

Both sides have the device at once and take turns: one trains a block of steps while the other waits, and keeps only its
own state in the device's memory. The first step of a block takes memory back and isn't timed. Both begin with the same
weights, train on the same samples, and have to come to the same loss.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.cuda import by_hand, child
from benchmarks.cuda.programme import NotHere, Numbers, Part, Row, Setting
from benchmarks.trainer_systems import ours
from benchmarks.trainer_systems.job import Job
from benchmarks.turns import Meter, Turns
from trainmaster import models
from trainmaster.contract.config import ModelConfig
from trainmaster.contract.wire import environment
from trainmaster.host import processes
from trainmaster.parallel.blocks import compiling, float8
from trainmaster.tools.parity.rows import LOSSY
from trainmaster.train.measures import mfu

OURS, BY_HAND = "trainmaster", "by hand"
WIDE = {"width": 2048, "heads": 16, "kv_heads": 8, "hidden": 8192, "context": 4096}
REAL = {"32k": {**WIDE, "layers": 17, "vocabulary": 2**15}, "128k": {**WIDE, "layers": 11, "vocabulary": 2**17}}
"""By vocabulary: as many layers as make 1.2 billion parameters of it."""
TOY = {"width": 32, "heads": 2, "kv_heads": 1, "hidden": 48, "context": 32, "layers": 2, "vocabulary": 256}
SEQUENCES, MICRO = 4, 1  # of a step, and of a forward pass
WARM_UP = 6  # steps
FACTS_LIMIT_S = 60.0


@dataclass(frozen=True)
class Case:
    """One way to train, and how the other side does it. Both compute in bf16; `precision` fp8 is of ours alone."""

    name: str
    precision: str
    compiled: bool

    @property
    def alike(self) -> float:
        """Largest relative difference of the losses after the warm-up: what the parity table allows both sides."""
        return LOSSY[self.precision] + LOSSY["bf16"]


CASES = (Case("compiled", "bf16", True), Case("fp8, compiled", "fp8", True), Case("eager", "bf16", False))


@dataclass(frozen=True)
class Blocks:
    """How long is measured. block: steps, of which the first isn't timed."""

    rounds: int = 6
    block: int = 5

    @property
    def steps(self) -> int:
        return WARM_UP + self.rounds * self.block


def config(setting: Setting, options: dict[str, int], case: Case, blocks: Blocks) -> dict[str, Any]:
    return {
        "model": {"name": "llama", "options": options},
        "data": {"path": "@stdlib"},
        "steps": blocks.steps,
        "batch": {"global": SEQUENCES, "micro": MICRO},
        "optimizer": {"lr": 1e-4, "schedule": "Constant"},
        "checkpoint": {"every": 10**9},
        "device": setting.job_device,
        "precision": case.precision,
        "compile": case.compiled,
    }


class DeviceMeter(Meter):
    """Times a device: a step is over when the device is done with it.

    facts: a file for the most memory that tensors took. While another system has its turn this one keeps no memory that
    it doesn't need. The first step of a block, which takes that back, isn't timed.
    """

    def __init__(self, blocks: Blocks, ends: tuple[int, int], device: torch.device, facts: Path) -> None:
        super().__init__(WARM_UP, blocks.block, *ends)
        self._device, self._facts = device, facts

    def step(self, step: int, loss: Callable[[], float] = lambda: float("nan")) -> None:
        at = (step - self.first) % self.block if step >= self.first else -1
        if at == 0:
            self._synchronize()
        super().step(step, loss)
        if at == 1:
            self._synchronize()
            used = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0
            self._facts.write_text(json.dumps({"peak_bytes": used}))
            self._begin()

    def begin(self) -> None:
        """Wait until the other side has had its warm-up."""
        self._wait()
        self._begin()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        super()._wait()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class System:
    """One side: a fork of this process, which ends with it."""

    def __init__(
        self,
        name: str,
        case: Case,
        blocks: Blocks,
        device: torch.device,
        folder: Path,
        meter_of: Callable[[Blocks, tuple[int, int], torch.device, Path], DeviceMeter] = DeviceMeter,
    ) -> None:
        self.name, self._facts, self._turns = name, folder / f"{name}.json", Turns(1)
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            processes.die_with_parent(parent)  # a fork has all ends of the pipes, so none is closed when this one ends
            meter = meter_of(blocks, self._turns.ends(0), device, self._facts)
            train = partial(ours.train, 0, str(folder), meter)
            if name == BY_HAND:
                train = partial(_by_hand, meter, device, case.compiled)
            _be(train)
        self._turns.started()

    def begin(self) -> None:
        """Let the warm-up begin, for which ours doesn't wait."""
        if self.name == BY_HAND:
            self._turns.release()

    def warm(self) -> float:
        """Wait for the end of the warm-up, and return its last step's loss."""
        self.begin()
        return self.seconds()[1]

    def seconds(self) -> tuple[float, float]:
        """(seconds of the block that has ended, the loss after the warm-up). Raises SystemExit if it has died."""
        try:
            (block,) = self._turns.finished()
        except EOFError:
            raise SystemExit(f"{self.name} has ended in the middle of a block, see its words above") from None
        return block.seconds, block.loss

    def train(self) -> float:
        """Train one block, and return its seconds."""
        self._turns.release()
        return self.seconds()[0]

    def facts(self) -> Numbers:
        """What its meter has written down."""
        found: Numbers = json.loads(self._facts.read_text())
        return found


def _by_hand(meter: DeviceMeter, device: torch.device, compiled: bool) -> None:
    by_hand.train(Job.from_environment("one device"), meter, meter.begin, device, compiled)


def _be(train: Callable[[], None]) -> None:
    """Train, and end this process."""
    code = 1
    try:
        train()
        code = 0
    except BaseException:  # noqa: BLE001 a fork must not run on into its parent's code
        traceback.print_exc()
    finally:
        os._exit(code)


def take_turns(setting: Setting, options: dict[str, int], case: Case, blocks: Blocks) -> Numbers:
    """Seconds of each block and the most memory, of both sides. To be called in a process of its own."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ[environment.CONFIG] = json.dumps(config(setting, options, case, blocks))
    on = torch.device("cpu") if setting.toy else torch.device("cuda", 0)
    with tempfile.TemporaryDirectory() as folder:
        sides = [System(name, case, blocks, on, Path(folder)) for name in (OURS, BY_HAND)]
        # One after the other: the activations of both wouldn't fit into a device's memory.
        losses = {side.name: side.warm() for side in sides}
        seconds: dict[str, list[float]] = {side.name: [] for side in sides}
        for turn in range(blocks.rounds):
            for side in sides if turn % 2 == 0 else reversed(sides):
                seconds[side.name].append(side.train())
        return {
            "losses": losses,
            "seconds": seconds,
            "peak_bytes": {side.name: side.facts()["peak_bytes"] for side in sides},
        }


def work_of(options: dict[str, int]) -> Numbers:
    """Parameters of the model, and the operations of a token, forwards and backwards."""
    wanted = ModelConfig(name="llama", options=options)
    with torch.device("meta"):
        model = models.module(models.validate(wanted))
    each = mfu.flops(model, models.facts(wanted))
    assert each is not None
    return {"parameters": sum(p.numel() for p in model.parameters()), "token_flops": each / options["context"]}


def measured(setting: Setting, vocabulary: str, case: Case, blocks: Blocks, limit_s: float) -> Numbers:
    name = row_name(vocabulary, case)
    check_case(setting, case)
    options = TOY if setting.toy else REAL[vocabulary]
    work = child.run(partial(work_of, options), setting.log(name), FACTS_LIMIT_S)
    found = child.run(partial(take_turns, setting, options, case, blocks), setting.log(name), limit_s)
    return {**work, **found, **derived(work, found, case, blocks, options["context"], setting.facts)}


def check_case(setting: Setting, case: Case) -> None:
    """Raises NotHere if this machine can't train in this way."""
    check_technique(setting, case.precision, case.compiled)


def check_technique(setting: Setting, precision: str, compiled: bool) -> None:
    """Raises NotHere if this machine has no compiler, or this device no products in 8 bits, and they are needed."""
    if compiled and (lacking := compiling.lacks(setting.device)):
        raise NotHere(f"torch.compile needs {lacking}")
    if precision == "fp8" and setting.facts is not None and (refusal := fp8_refusal(setting.facts)):
        raise NotHere(refusal)


def fp8_refusal(facts: dict[str, Any]) -> str:
    """Why a device has no products in 8 bits; "" if it has."""
    has = tuple(map(int, facts["capability"].split(".")))
    needed = ".".join(map(str, float8.NEEDED))
    return f"fp8 needs compute capability {needed}, and this device has {facts['capability']}" * (has < float8.NEEDED)


def derived(
    work: Numbers, found: Numbers, case: Case, blocks: Blocks, context: int, facts: dict[str, Any] | None
) -> Numbers:
    """Speeds, their ratio, and what part of the device's best they are; None where nobody knows its best."""
    tokens = (blocks.block - 1) * SEQUENCES * context
    speeds = {name: [tokens / each for each in seconds] for name, seconds in found["seconds"].items()}
    ratios = [own / other for own, other in zip(speeds[OURS], speeds[BY_HAND], strict=True)]
    precisions = {OURS: case.precision, BY_HAND: "bf16"}
    name = facts["name"] if facts is not None else ""
    best = {system: mfu.peak(name, precision, "Highest") for system, precision in precisions.items()}
    medians = {system: statistics.median(values) for system, values in speeds.items()}
    losses, flops = found["losses"], work["token_flops"]
    return {
        "tokens_per_s": speeds,
        "median": medians,
        "ratio": statistics.median(ratios),
        "mfu": {system: speed * flops / p if (p := best[system]) else None for system, speed in medians.items()},
        "passed": abs(losses[OURS] / losses[BY_HAND] - 1) <= case.alike,
        "alike": case.alike,
    }


def row_name(vocabulary: str, case: Case) -> str:
    return f"1.2B, V {vocabulary}, {case.name}"


def rows(setting: Setting) -> list[Row]:
    blocks = Blocks(2, 3) if setting.toy else Blocks()
    return [
        Row(row_name(vocabulary, case), partial(measured, setting, vocabulary, case, blocks), 40.0, 200.0)
        for vocabulary, case in product(REAL, CASES)
    ]


def cells(numbers: Numbers) -> Sequence[str]:
    speeds, used = numbers["median"], numbers["peak_bytes"]
    shares = [f"{share:.1%}" if (share := numbers["mfu"][name]) is not None else "unknown device" for name in speeds]
    return (
        *(f"{speed:,.0f}" for speed in speeds.values()),
        f"{numbers['ratio']:.3f}",
        *shares,
        *(f"{used[name] / 2**30:.1f}" for name in speeds),
    )


COLUMNS = ("tokens/s", "by hand", "ratio", "MFU", "by hand", "peak, GiB", "by hand")
PART = Part("speed", COLUMNS, rows, cells)
