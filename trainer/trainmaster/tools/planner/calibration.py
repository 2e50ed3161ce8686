"""How fast this machine's CPU is: measured once by two ranks, in some seconds, and kept in a file.

Other programs may use the machine at the same time. So each figure is measured in several rounds, and the best one
counts. If the rounds don't agree, or the best one can't be right, the figures are used but not kept, and the planner
says so.

The file lies in the user's cache folder and is named after what the figures depend on: the machine, its cores, torch's
version and the type that blocks compute in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainmaster.contract.config import TrainingConfig
from trainmaster.host import atomic_write
from trainmaster.parallel.blocks.precision import DTYPES
from trainmaster.tools.parity import Row, run
from trainmaster.tools.planner.machine import Figures

PRODUCT = 256  # rows and columns of the matrices that are multiplied
SMALLEST = 64  # to which they are halved as long as a product takes longer than SLICE_S
SLICE_S = 0.005
"""Longest time of a product that is measured, in seconds: other programs could interrupt a longer one in each round."""
LARGE = 8 << 20  # bytes that are summed to learn the bandwidth
ROUNDS = 5
ENOUGH_S = 0.05  # for each figure in each round

AGREES = 2.0
"""The second fastest round may be this many times slower than the fastest one. Rounds on a machine that has a core to
spare differ by far less."""

LEAST_FLOPS = 1e8
"""Lowest operations per second of one thread that can be right. The slowest that was seen is bf16 on a CPU that has
no instructions for it: about 1e9."""


def figures(config: TrainingConfig) -> tuple[Figures, str]:
    """Return (the figures of this machine, why they are doubtful or "").

    The figures are those of the file, or are measured, and then stored unless they are doubtful. It forks, so call it
    before this process runs an operation of torch. Raises RuntimeError if a rank dies.
    """
    file = _file(config.precision)
    if (known := _kept(file)) is not None:
        return known, ""
    rounds, _ = run(Row("calibration", {"dpReplicate": 2}), config, work=_measured)
    found, doubt = best_of(rounds), doubts(rounds)
    if not doubt:
        _keep(file, found)
    return found, doubt


def best_of(rounds: Sequence[Figures]) -> Figures:
    """Return the best value of each figure: nothing but other programs makes a round slower."""
    return Figures(
        flops=max(one.flops for one in rounds),
        bandwidth=max(one.bandwidth for one in rounds),
        operation_s=min(one.operation_s for one in rounds),
        collective_s=min(one.collective_s for one in rounds),
    )


def doubts(rounds: Sequence[Figures]) -> str:
    """Return why the best of these rounds can't be trusted, as a clause; "" if it can.

    Only what one thread computes is judged: the time of a collective differs much on a quiet machine, too.
    """
    best = best_of(rounds)
    if not _is_possible(best):
        return f"{best.flops / 1e9:.3g} GFLOP/s is too slow for a core of a CPU"
    for name, times in (
        ("a product of matrices", [1 / one.flops for one in rounds]),
        ("a small operation", [one.operation_s for one in rounds]),
    ):
        fastest, second = sorted(times)[:2]
        if second > AGREES * fastest:
            return f"{name} took {second / fastest:.2g} times as long in the second fastest round as in the fastest one"
    return ""


def _is_possible(found: Figures) -> bool:
    return all(0 < value < 1e18 for value in dataclasses.astuple(found)) and found.flops >= LEAST_FLOPS


def _file(precision: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not base.is_absolute():
        base = Path(os.devnull)  # This user has no home, as in a container; nothing can be kept there.
    facts = [platform.node(), platform.machine(), _processor(), os.cpu_count(), torch.__version__, precision]
    return base / "trainmaster" / f"machine-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.json"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return ""


def _kept(file: Path) -> Figures | None:
    """Return the stored figures, or None if there are none or they cannot be right."""
    try:
        values = json.loads(file.read_text())
        found = Figures(**{field.name: float(values[field.name]) for field in dataclasses.fields(Figures)})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if _is_possible(found) else None


def _keep(file: Path, found: Figures) -> None:
    with contextlib.suppress(OSError):  # without a place to keep them they are measured each time
        atomic_write.write(file, json.dumps(dataclasses.asdict(found)) + "\n")


def _measured(config: TrainingConfig, row: Row, rank: int) -> list[Figures]:
    """Measure on a rank of two. Return a list of ROUNDS figures on rank 0.

    The other rank waits while rank 0 computes alone, as one thread of an idle machine does.
    """
    return [figures for _ in range(ROUNDS) if (figures := _round(config, rank)) is not None]


def _round(config: TrainingConfig, rank: int) -> Figures | None:
    few, many = torch.zeros(16), torch.zeros(LARGE // 4)
    collective_s = _median_s(lambda: dist.all_reduce(few), 20)
    large_s = _median_s(lambda: dist.all_reduce(many), 3)
    if rank:
        return None
    return Figures(
        flops=_flops(DTYPES[config.precision]),
        bandwidth=LARGE / max(large_s - collective_s, 1e-9),  # of two ranks, each sends as much as it has
        operation_s=_operation_s(),
        collective_s=collective_s,
    )


def _flops(dtype: torch.dtype) -> float:
    """Return the operations per second of a matrix product."""
    size = PRODUCT
    while True:
        matrix = torch.ones(size, size, dtype=dtype)
        product_s = _best_s(lambda: matrix @ matrix)  # noqa: B023 called before the next turn
        if product_s <= SLICE_S or size <= SMALLEST:
            return 2 * size**3 / product_s
        size //= 2


def _operation_s() -> float:
    """Return the seconds of an operation in a chain of small modules, forward and backward, as training runs them."""
    chain = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)) for _ in range(8)))
    x = torch.ones(4, 16)

    def step() -> None:
        chain(x).sum().backward()

    counted = _Count()
    with counted:
        step()
    return _best_s(step) / counted.operations


class _Count(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


def _median_s(work: Callable[[], Any], times: int) -> float:
    """Return the median seconds of `work`. Both ranks run it equally often."""
    took = []
    for _ in range(times + 1):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took[1:])


def _best_s(work: Callable[[], Any]) -> float:
    """Return the minimum seconds of `work` over as many runs as fit into ENOUGH_S, because others may use this
    machine."""
    work()
    best, until = float("inf"), time.perf_counter() + ENOUGH_S
    while time.perf_counter() < until:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
