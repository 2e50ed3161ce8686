"""Record one step of a Llama of 1.2 billion parameters, ours and the loop by hand: how long each kernel takes, and how
long the device has nothing to do.

Both sides are those of `speed`, and warm up at the same time. Then each has the device to itself: some steps are timed
as they are, and the one behind them is recorded. Its trace, for chrome://tracing or Perfetto, stays in the folder of
results.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.cuda import child
from benchmarks.cuda.programme import Numbers, Part, Row, Setting, file_name
from benchmarks.cuda.speed import (
    BY_HAND,
    CASES,
    OURS,
    REAL,
    TOY,
    Blocks,
    Case,
    DeviceMeter,
    System,
    check_case,
    config,
    row_name,
)
from trainmaster.contract.wire import environment

VOCABULARY = "32k"
BLOCKS = Blocks(rounds=1, block=6)
"""One block of each side: a step that takes memory back, four that are timed, and one that is recorded."""
NAMED, WIDTH = 25, 90  # kernels of a table, and characters of their names
GAP_US = 10.0
"""From here on a gap between kernels is a long one. Between two kernels that wait in a queue there are 1 to 2 us."""
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
"""Categories of a trace. On a CPU there is only cpu_op, and the outermost operators are what is counted."""


class StepRecorder(DeviceMeter):
    """Times the steps of one block, and records its last one."""

    def __init__(self, blocks: Blocks, ends: tuple[int, int], device: torch.device, facts: Path, traces: Path) -> None:
        super().__init__(blocks, ends, device, facts)
        self._trace = traces / f"{facts.stem}.json"
        activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
        self._profile = profile(activities=[activity])
        self._step_s = 0.0

    def step(self, step: int, loss: Callable[[], float] = lambda: float("nan")) -> None:
        done = step - self.first
        if done == self.block - 1:
            self._synchronize()
            self._step_s = (time.perf_counter() - self._began) / (self.block - 2)
            self._profile.start()
            self._began = time.perf_counter()
        elif done == self.block:
            self._synchronize()
            recorded_s = time.perf_counter() - self._began
            self._profile.stop()
            self._profile.export_chrome_trace(str(self._trace))
            found = summary(json.loads(self._trace.read_text())["traceEvents"], recorded_s)
            self._facts.write_text(json.dumps({"step_ms": self._step_s * 1e3, **found}))
        super().step(step, loss)


def summary(events: Iterable[dict[str, Any]], recorded_s: float) -> Numbers:
    """What a step's trace says: milliseconds of kernels by name, of all of them, and without any."""
    every = [event for event in events if event.get("ph") == "X"]
    kernels = [event for event in every if event.get("cat") in ON_DEVICE]
    kernels = kernels or [event for event in every if event.get("cat") == "cpu_op"]
    calls: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    ends: dict[Any, float] = {}  # of each stream, or thread
    until, busy, gaps = 0.0, 0.0, []
    for event in sorted(kernels, key=lambda event: (event["ts"], -event["dur"])):
        lane, begins, ends_at = (event["pid"], event["tid"]), float(event["ts"]), float(event["ts"] + event["dur"])
        if begins < ends.get(lane, 0.0):
            continue  # within another operator
        ends[lane] = ends_at
        calls[event["name"]] += 1
        spent[event["name"]] += event["dur"]
        if until and begins - until > GAP_US:
            gaps.append(begins - until)
        busy += max(0.0, ends_at - max(begins, until))
        until = max(until, ends_at)
    return {
        "recorded_ms": recorded_s * 1e3,
        "kernels_ms": sum(spent.values()) / 1e3,
        "kernel_count": sum(calls.values()),
        "idle_ms": recorded_s * 1e3 - busy / 1e3,
        "long_gaps": len(gaps),
        "long_gaps_ms": sum(gaps) / 1e3,
        "kernels": [[name, calls[name], us / 1e3] for name, us in spent.most_common(NAMED)],
    }


def record_both(setting: Setting, options: dict[str, int], case: Case, traces: Path) -> Numbers:
    """The summaries of both sides, by their names. To be called in a process of its own."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ[environment.CONFIG] = json.dumps(config(setting, options, case, BLOCKS))
    on = torch.device("cpu") if setting.toy else torch.device("cuda", 0)
    traces.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        meter = partial(StepRecorder, traces=traces)
        sides = [System(name, case, BLOCKS, on, Path(folder), meter) for name in (OURS, BY_HAND)]
        for side in sides:
            side.begin()
        for side in sides:
            side.seconds()
        for side in sides:
            side.train()
        return {"sides": {side.name: side.facts() for side in sides}}


def recorded(setting: Setting, case: Case, limit_s: float) -> Numbers:
    name = row_name(VOCABULARY, case)
    check_case(setting, case)
    options = TOY if setting.toy else REAL[VOCABULARY]
    work = partial(record_both, setting, options, case, setting.folder / "traces" / file_name(name))
    found = child.run(work, setting.log(name), limit_s)
    return {**found, "said": "\n".join(line for side, told in found["sides"].items() for line in table(side, told))}


def table(side: str, told: Numbers) -> Iterable[str]:
    """A side's summary, for people."""
    yield (
        f"{side}: a step takes {told['step_ms']:.1f} ms, the recorded one {told['recorded_ms']:.1f} ms; "
        f"{told['kernel_count']} kernels take {told['kernels_ms']:.1f} ms, "
        f"for {told['idle_ms']:.1f} ms there is none, of which {told['long_gaps']} long gaps take "
        f"{told['long_gaps_ms']:.1f} ms"
    )
    for name, calls, milliseconds in told["kernels"]:
        yield f"    {milliseconds:9.3f} ms {calls:6} x {' '.join(name.split())[:WIDTH]}"


def rows(setting: Setting) -> list[Row]:
    return [Row(row_name(VOCABULARY, case), partial(recorded, setting, case), 30.0, 200.0) for case in CASES]


def cells(numbers: Numbers) -> Sequence[str]:
    sides = numbers["sides"].values()
    return [f"{side[name]:.1f}" for name in ("step_ms", "kernels_ms", "idle_ms") for side in sides]


COLUMNS = ("step, ms", "by hand", "kernels, ms", "by hand", "idle, ms", "by hand")
PART = Part("profile", COLUMNS, rows, cells)
