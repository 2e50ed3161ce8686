"""Train one rank of a Llama in each precision and with each technique, and compare its losses with the CPU's. Run the
tests that need a device, and measure how a killed rank comes back.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import commands
from benchmarks.cuda import child
from benchmarks.cuda.programme import NotHere, Numbers, Part, Row, Setting, file_name
from benchmarks.cuda.speed import check_technique
from benchmarks.cuda.surroundings import ROOT, search_path
from trainmaster.contract.wire import environment
from trainmaster.tools.parity.rows import LOSSY

PRECISIONS = ("fp32", "bf16", "fp16", "fp8")
STEPS = 8
REAL = {"layers": 2, "width": 256, "heads": 4, "kv_heads": 2, "context": 256}
TOY = {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "context": 32}
TOLERANCES = {"fp32": 1e-4, **{precision: 2 * tolerance for precision, tolerance in LOSSY.items()}}
"""Largest relative difference of a step's loss to the CPU's, by precision.

fp32: a device sums in another order, which changes the seventh digit; AdamW's first updates are as large for a gradient
next to zero, whose sign that order can change, as for any other, so a few weights move the other way. Others: each side
is as far from exact numbers as the parity table allows (LOSSY), so they are at most twice as far from each other.
"""
RECOVERIES, BALLAST_GIB = 5, 4.0
OLDEST_PYTEST = 9
"""Older ones don't know `faulthandler_exit_on_timeout`, and pyproject.toml lets them refuse what they don't know."""


def config(setting: Setting, precision: str, recompute: str = "None", compiled: bool = False) -> dict[str, Any]:
    """The job of a row."""
    sizes = TOY if setting.toy else REAL
    return {
        "model": {"name": "llama", "options": {**sizes, "reversible": recompute == "Reversible"}},
        "data": {"path": "@stdlib"},
        "steps": STEPS,
        "batch": {"global": 4, "micro": 2},
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"every": STEPS},
        "device": setting.job_device,
        "precision": precision,
        "recompute": recompute,
        "compile": compiled,
    }


def train(job: dict[str, Any], output: Path) -> Numbers:
    """Train a job to its end, as its only rank, in this process. Returns its losses, the seconds of each step, the most
    memory of the device that its tensors took, in bytes, and the number of graphs that torch.compile captured."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ.update({environment.CONFIG: json.dumps(job), environment.OUTPUT_DIR: str(output)})
    from trainmaster.train import loop

    metrics = output / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    try:
        loop.main()
    except SystemExit as ended:
        if ended.code:
            raise
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {
        "losses": [float(line["loss"]) for line in lines],
        "seconds": [line["seconds"] for line in lines],
        "peak_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0,
        "graphs": _captured_graphs() if job["compile"] else 0,
    }


def _captured_graphs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def difference(losses: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference of a step's loss; infinite if one is no number, or their counts differ."""
    if len(losses) != len(expected) or not losses:
        return float("inf")
    found = [abs(loss / other - 1) for loss, other in zip(losses, expected, strict=True)]
    return max(value if value == value else float("inf") for value in found)  # NaN is the only value unlike itself


class References:
    """Losses of the same jobs on the CPU, neither recomputed nor compiled. Each is trained once."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._trained = child.Once()

    def losses(self, precision: str, reversible: bool, limit_s: float) -> list[float]:
        """`reversible`: of the model of two streams. Raises WorkFailed."""
        # Reversible is another model. What is kept for its backward pass makes no difference to its losses.
        job = config(self._setting, precision, "Reversible" if reversible else "None")
        job = {**job, "recompute": "None", "device": "CPU"}
        name = f"CPU {precision}{' reversible' if reversible else ''}"
        work = partial(train, job, self._setting.folder / "runs" / file_name(name))
        losses: list[float] = self._trained.run(name, work, self._setting.log(name), limit_s)["losses"]
        return losses


def compared(
    setting: Setting, references: References, precision: str, recompute: str, compiled: bool, limit_s: float
) -> Numbers:
    name = row_name(precision, recompute, compiled)
    check_technique(setting, precision, compiled)
    ends = time.monotonic() + limit_s
    expected = references.losses(precision, recompute == "Reversible", limit_s)
    job, output = config(setting, precision, recompute, compiled), setting.folder / "runs" / file_name(name)
    found = child.run(partial(train, job, output), setting.log(name), ends - time.monotonic())
    if compiled and not found["graphs"]:
        # It would have the right losses, since Dynamo runs as it is what it can't capture.
        raise child.WorkFailed("torch.compile captured no graph of the blocks, so nothing was compiled")
    most, tolerance = difference(found["losses"], expected), TOLERANCES[precision]
    return {**found, "expected": expected, "difference": most, "tolerance": tolerance, "passed": most <= tolerance}


def row_name(precision: str, recompute: str, compiled: bool) -> str:
    return f"{precision}, recompute {recompute}, {'compiled' if compiled else 'eager'}"


def marked_tests(setting: Setting, limit_s: float) -> Numbers:
    """The tests that need a device."""
    if setting.toy:
        raise NotHere("tests marked cuda need a CUDA device")
    for name in ("pytest", "hypothesis"):
        if find_spec(name) is None:
            raise NotHere(f"this Python has no {name}")
    if int(metadata.version("pytest").partition(".")[0]) < OLDEST_PYTEST:
        raise NotHere(f"our settings need pytest {OLDEST_PYTEST}, and this Python has {metadata.version('pytest')}")
    files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.cuda" in path.read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    log = setting.log("tests marked cuda")
    log.parent.mkdir(parents=True, exist_ok=True)
    code = commands.run(command, {}, log, limit_s)
    said = log.read_text(errors="replace").strip().splitlines()[-1:]
    return {"passed": code == 0 and " passed" in "".join(said), "code": code, "said": "".join(said)}


def killed_rank(setting: Setting, limit_s: float) -> Numbers:
    """Zygote, fork, cuInit, step, SIGKILL, memory free, and the next rank: seconds of each phase."""
    result = setting.folder / "recovery.json"
    result.unlink(missing_ok=True)
    log = setting.log("a killed rank")
    log.parent.mkdir(parents=True, exist_ok=True)
    repetitions, ballast, where = (1, 0.0, ["--cpu"]) if setting.toy else (RECOVERIES, BALLAST_GIB, [])
    command = [sys.executable, "-m", "benchmarks.cuda_recovery", "--repetitions", str(repetitions)]
    command += ["--memory-gib", str(ballast), "--json", str(result), *where]
    code = commands.run(command, {"PYTHONPATH": search_path(os.environ)}, log, limit_s)
    if code != 0:
        how = f"it was stopped after {limit_s:.0f} s" if code is None else f"exit code {code}"
        raise child.WorkFailed(f"{how}; {child.last_words(log)}")
    samples = json.loads(result.read_text())["samples"]
    medians = {phase: statistics.median(sample[phase] for sample in samples) for phase in samples[0]}
    said = "median seconds: " + ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in medians.items())
    return {"samples": samples, "said": said}


def rows(setting: Setting) -> list[Row]:
    return [*_rows(setting)]


def _rows(setting: Setting) -> Iterator[Row]:
    references = References(setting)

    def row(precision: str, recompute: str, compiled: bool) -> Row:
        work = partial(compared, setting, references, precision, recompute, compiled)
        return Row(row_name(precision, recompute, compiled), work, 30.0 if compiled else 15.0, 180.0)

    yield from (row(precision, "None", False) for precision in PRECISIONS)
    for name, work in {"a killed rank comes back": killed_rank, "tests marked cuda": marked_tests}.items():
        yield Row(name, partial(work, setting), 30.0, 150.0)
    yield from (row(precision, how, False) for how, precision in product(("Full", "Selective"), PRECISIONS))
    yield from (row(precision, "Reversible", False) for precision in ("fp32", "bf16"))
    yield from (row(precision, how, True) for how, precision in product(("None", "Full", "Selective"), PRECISIONS))


def cells(numbers: Numbers) -> Sequence[str]:
    if "losses" not in numbers:
        return ()
    first, *later = numbers["seconds"]
    return (
        f"{numbers['difference']:.1e}",
        f"{numbers['tolerance']:.0e}",
        f"{first:.2f}",
        f"{statistics.median(later) * 1e3:.1f}",
        f"{numbers['peak_bytes'] / 2**30:.3f}",
    )


PART = Part("works", ("loss beside CPU", "tolerance", "first step, s", "step, ms", "peak, GiB"), rows, cells)
