"""How fast this machine's CPU is: measured once by two ranks, in about a second, and kept in a file.

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
from collections.abc import Callable
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

PRODUCT = 512  # rows and columns of the matrices that are multiplied
LARGE = 8 << 20  # bytes that are summed to learn the bandwidth
ENOUGH_S = 0.1  # for each figure


def figures(config: TrainingConfig) -> Figures:
    """The kept figures of this machine, or else measured ones, which are kept. Forks: call it before this process runs
    an operation of torch. Raises RuntimeError when a rank dies."""
    file = _file(config.precision)
    known = _kept(file)
    if known is None:
        known, _ = run(Row("calibration", {"dpReplicate": 2}), config, work=_measured)
        _keep(file, known)
    return known


def _file(precision: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    facts = [platform.node(), platform.machine(), _processor(), os.cpu_count(), torch.__version__, precision]
    return base / "trainmaster" / f"machine-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.json"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return ""


def _kept(file: Path) -> Figures | None:
    """None where there are none, or where they can't be right."""
    try:
        values = json.loads(file.read_text())
        found = Figures(**{field.name: float(values[field.name]) for field in dataclasses.fields(Figures)})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if all(0 < value < 1e18 for value in dataclasses.astuple(found)) else None


def _keep(file: Path, found: Figures) -> None:
    with contextlib.suppress(OSError):  # without a place to keep them they are measured each time
        atomic_write.write(file, json.dumps(dataclasses.asdict(found)) + "\n")


def _measured(config: TrainingConfig, row: Row, rank: int) -> Figures:
    """On a rank of two. The other one waits while rank 0 computes alone, as one thread of an idle machine does."""
    few, many = torch.zeros(16), torch.zeros(LARGE // 4)
    collective_s = _median_s(lambda: dist.all_reduce(few), 100)
    large_s = _median_s(lambda: dist.all_reduce(many), 5)
    if rank:
        return Figures(0.0, 0.0, 0.0, 0.0)
    matrix = torch.ones(PRODUCT, PRODUCT, dtype=DTYPES[config.precision])
    product_s = _best_s(lambda: matrix @ matrix)
    return Figures(
        flops=2 * PRODUCT**3 / product_s,
        bandwidth=LARGE / max(large_s - collective_s, 1e-9),  # of two ranks, each sends as much as it has
        operation_s=_operation_s(),
        collective_s=collective_s,
    )


def _operation_s() -> float:
    """Of a chain of small modules, forward and backward, as training runs them."""
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
    """Both ranks do it as often."""
    took = []
    for _ in range(times + 1):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took[1:])


def _best_s(work: Callable[[], Any]) -> float:
    """Of as many times as fit into ENOUGH_S: others may use this machine, too."""
    work()
    best, until = float("inf"), time.perf_counter() + ENOUGH_S
    while time.perf_counter() < until:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
