"""Measure what checkpoints cost on a device: building, saving and loading, and how long a save makes the steps wait.

One rank trains and saves, and ends as if it was killed; a second one goes on from there. The tier "storage" is in the
folder of results; its files are dropped from the page cache before they are read. The tier "memory" is a folder of a
tmpfs, as an agent has it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.cuda import child
from benchmarks.cuda.programme import NotHere, Numbers, Part, Row, Setting
from benchmarks.cuda.speed import REAL as LLAMAS
from benchmarks.cuda.speed import work_of
from trainmaster.contract.wire import environment

SIZES = {
    "0.3B": {"width": 1024, "heads": 16, "kv_heads": 8, "hidden": 4096, "context": 1024, "layers": 16},
    "1.2B": {**LLAMAS["32k"], "context": 1024},
}
VOCABULARY = 2**15
TOY = {"width": 32, "heads": 2, "kv_heads": 1, "hidden": 48, "context": 32, "layers": 2}
STATE = 12  # bytes of a parameter: itself and two moments, in fp32
EVERY, SAVES, AFTER = 4, 3, 2
"""Steps from save to save, how many are made, and the steps that the second rank adds."""
SLACK = 2.2  # what is kept while the next one is written, and headers
TMPFS = Path("/dev/shm")
PREFIX = "trainmaster-cuda-"  # of folders; the process that they belong to follows
TIERS = {"storage": "storage", "memory": "ram"}
"""By our names, what a rank calls the place that it has loaded from."""
FACTS_LIMIT_S = 60.0


def config(setting: Setting, options: dict[str, int], tier: str) -> dict[str, Any]:
    return {
        "model": {"name": "llama", "options": options},
        "data": {"path": "@stdlib"},
        "steps": 10**6,
        "batch": {"global": 4},
        "optimizer": {"lr": 1e-4, "schedule": "Constant"},
        "checkpoint": {"every": EVERY if tier == "storage" else 10**6, "keep": 1},
        "device": setting.job_device,
        "precision": "bf16",
    }


class Timings:
    """Seconds of what a rank calls, by names of ours."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.copies: dict[int, tuple[float, int]] = {}  # to host memory, by step: seconds and bytes
        self.on_device: dict[int, bool] = {}  # by step: whether the state was copied on the device first

    def time(self, owner: Any, function: str, name: str, synchronize: Callable[[], None] = lambda: None) -> None:
        """Have all calls of a function timed. `synchronize`: wait for the device, before and after."""
        inner, found = getattr(owner, function), self.seconds.setdefault(name, [])

        def timed(*arguments: Any, **options: Any) -> Any:
            synchronize()
            began = time.perf_counter()
            try:
                return inner(*arguments, **options)
            finally:
                synchronize()
                found.append(time.perf_counter() - began)

        setattr(owner, function, timed)

    def time_copies(self, copy: Any) -> None:
        """Have copies of a save to host memory timed. Two threads may want the same one; the one that makes it takes
        the longer."""
        make = copy.make

        def timed(this: Any, name: str) -> None:
            began, made = time.perf_counter(), this.size
            make(this, name)
            if not made and this.size:
                longest = max(self.copies.get(this.step, (0.0, 0))[0], time.perf_counter() - began)
                self.copies[this.step] = longest, this.size
                self.on_device[this.step] = this.on_device

        copy.make = timed


def train(job: dict[str, Any], last: int, variables: dict[str, str]) -> Numbers:
    """Train a job up to step `last` as its only rank, in this process, and end as if it was killed behind it. Returns
    the seconds of what it did, and where it had begun."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ.update({environment.CONFIG: json.dumps(job), **variables})
    from trainmaster import models, parallel
    from trainmaster.checkpoint.memory.memory_saver import RamSaver
    from trainmaster.checkpoint.state import storage_saver
    from trainmaster.checkpoint.state.checkpoint_session import Session
    from trainmaster.optim import optimizer
    from trainmaster.rank.reporter import Reporter
    from trainmaster.train import loop

    on_device = torch.cuda.is_available()

    def synchronize() -> None:
        if on_device and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    timings = Timings()
    began: dict[str, Any] = {}
    for owner, function, name in (
        (models, "build_undrawn", "build: model"),
        (parallel, "of_job", "build: parallelism"),
        (optimizer, "ShardOptimizer", "build: optimizer"),
        (Session, "restore", "load"),
        (loop.Training, "one_step", "step"),
        (loop.Training, "save", "save"),
        (Session, "remember", "save to memory"),
    ):
        timings.time(owner, function, name, synchronize)
    # These run in threads beside the steps, which they must not wait for.
    timings.time(storage_saver, "upload", "write")
    timings.time(RamSaver, "_finish", "check memory")
    timings.time_copies(storage_saver._Copy)
    one_step, resumed = loop.Training.one_step, Reporter.resumed

    def step(self: Any) -> None:
        one_step(self)
        if self.step == last:
            if self.session.url and self.step % self.config.checkpoint.every == 0:
                self.save()
            self.session.settle()
            self.session.drain()
            raise SystemExit(0)

    def told(self: Any, step: int, checkpoint: str | None, tier: str = "") -> None:
        began.update(step=step, tier=tier)
        resumed(self, step, checkpoint, tier)

    loop.Training.one_step, Reporter.resumed = step, told  # type: ignore[method-assign]
    try:
        loop.main()
    except SystemExit as ended:
        if ended.code:
            raise
    return {
        "seconds": timings.seconds,
        "copies": [*timings.copies.values()],
        "on_device": [*timings.on_device.values()],
        "began": began,
    }


def forget(folder: Path) -> None:
    """Make the page cache forget the files of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measured(setting: Setting, size: str, tier: str, limit_s: float) -> Numbers:
    ends = time.monotonic() + limit_s
    options = {**(TOY if setting.toy else SIZES[size]), "vocabulary": 256 if setting.toy else VOCABULARY}
    log = setting.log(row_name(size, tier))
    state = STATE * child.run(partial(work_of, options), log, FACTS_LIMIT_S)["parameters"]
    last, job = EVERY * SAVES, config(setting, options, tier)
    kept = setting.folder / "storage"
    kept.mkdir(parents=True, exist_ok=True)
    for folder in (kept, TMPFS):
        remove_left_behind(folder)
    check_room(kept if tier == "storage" else TMPFS, state)
    name = f"{PREFIX}{os.getpid()}-"
    with (
        tempfile.TemporaryDirectory(prefix=name, dir=kept) as storage,
        tempfile.TemporaryDirectory(prefix=name, dir=TMPFS) as memory,
    ):
        variables = {environment.CHECKPOINT_DIR: storage, environment.OUTPUT_DIR: storage}
        if tier == "memory":
            budget = {environment.RAM_BUDGET: str(int(SLACK * state) + 2**20), environment.RAM_EVERY: str(EVERY)}
            variables |= {environment.RAM_DIR: memory, **budget}
        first, second = {**variables, environment.ROUND: "1"}, {**variables, environment.ROUND: "2"}
        saved = child.run(partial(train, job, last, first), log, ends - time.monotonic())
        forget(Path(storage))
        loaded = child.run(partial(train, job, last + AFTER, second), log, ends - time.monotonic())
    return {"state_bytes": state, "saved": saved, "loaded": loaded, **derived(state, tier, last, saved, loaded)}


def remove_left_behind(folder: Path) -> None:
    """Remove what a command that was killed has left in a folder: gigabytes, which nobody would look for."""
    for path in folder.glob(f"{PREFIX}*-*"):
        owner = path.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            shutil.rmtree(path, ignore_errors=True)


def check_room(folder: Path, state: int) -> None:
    """Raises NotHere if two checkpoints don't fit."""
    free, needed = shutil.disk_usage(folder).free, SLACK * state
    if free < needed:
        raise NotHere(f"{folder} has {free / 1e9:.1f} GB left, and two checkpoints need {needed / 1e9:.1f} GB")


def derived(state: int, tier: str, last: int, saved: Numbers, loaded: Numbers) -> Numbers:
    """What a person asks: seconds and GB/s by phase."""
    seconds = saved["seconds"]
    steps = seconds["step"]
    calm = statistics.median(steps[at] for at in range(1, last) if at % EVERY not in (0, EVERY - 1))
    if tier == "storage":
        # A save begins behind a step, and the step after it waits for the copy.
        behind = statistics.median(steps[at] for at in range(EVERY, last, EVERY))
        stall = behind - calm + statistics.median(seconds["save"])
        copies = [size / taken for taken, size in saved["copies"]]
        writes = [state / taken for taken in seconds["write"]]
    else:
        # The copy is part of the step whose state it has, and the next step waits until it counts.
        with_copy = statistics.median(steps[at] for at in range(EVERY - 1, last, EVERY))
        behind = statistics.median(steps[at] for at in range(EVERY, last, EVERY))
        stall = with_copy + behind - 2 * calm
        copies = [state / taken for taken in seconds["save to memory"] if taken > 0]
        writes = [state / taken for taken in seconds["check memory"]]
    began = loaded["began"]
    (load,) = loaded["seconds"]["load"]
    return {
        "build_s": {name: taken[0] for name, taken in seconds.items() if name.startswith("build")},
        "calm_step_s": calm,
        "stall_s": stall,
        "copy_gb_s": statistics.median(copies) / 1e9,
        "write_gb_s": statistics.median(writes) / 1e9,
        "load_s": load,
        "passed": began == {"step": last, "tier": TIERS[tier]},
        "said": f"the second rank began behind step {began['step']}, from {began['tier'] or 'nothing'}",
    }


def row_name(size: str, tier: str) -> str:
    return f"{size}, {tier}"


def rows(setting: Setting) -> list[Row]:
    return [
        Row(row_name(size, tier), partial(measured, setting, size, tier), 60.0, 240.0)
        for size, tier in product(SIZES, TIERS)
    ]


def cells(numbers: Numbers) -> Sequence[str]:
    return (
        f"{numbers['state_bytes'] / 1e9:.2f}",
        f"{sum(numbers['build_s'].values()):.2f}",
        f"{numbers['calm_step_s']:.3f}",
        f"{numbers['stall_s']:.3f}",
        f"{numbers['copy_gb_s']:.2f}",
        f"{numbers['write_gb_s']:.2f}",
        f"{numbers['load_s']:.2f}",
        f"{numbers['state_bytes'] / numbers['load_s'] / 1e9:.2f}",
    )


COLUMNS = ("state, GB", "build, s", "step, s", "stall, s", "copy, GB/s", "write, GB/s", "load, s", "load, GB/s")
PART = Part("checkpoints", COLUMNS, rows, cells)
