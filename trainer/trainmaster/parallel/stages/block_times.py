"""The time that each block of a model takes, measured on the device that trains it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainmaster.host import atomic_write
from trainmaster.parallel.blocks.precision import DTYPES
from trainmaster.parallel.model_plan import plan_of
from trainmaster.parallel.stages.partition import Costs

RUNS = 3  # after a first one, which allocates and compiles


def agreed(model: nn.Module, tokens: int, precision: str, kept: Path | None) -> Costs:
    """Return the costs by which all ranks divide the model: those that rank 0 has measured.

    `kept` is the file to which rank 0 writes its measurement, and from which it reads it later, so that a job that
    restarts is divided as before. Other ranks need not see the file. `tokens` is the number of tokens of a sequence.
    """
    numbers: Any = torch.zeros(_count(model) + 2, device=next(model.parameters()).device)
    if dist.get_rank() == 0:
        numbers += torch.tensor(_kept_or_measured(model, tokens, precision, kept), device=numbers.device)
    dist.broadcast(numbers, src=0)
    stem, *blocks, tail = numbers.tolist()
    return Costs(stem, blocks, tail)


def _kept_or_measured(model: nn.Module, tokens: int, precision: str, kept: Path | None) -> list[float]:
    if kept is not None and kept.exists():
        found: list[float] = json.loads(kept.read_text())["seconds"]
        if len(found) == _count(model) + 2:
            return found
    costs = by_time(model, tokens, precision)
    found = [costs.stem, *costs.blocks, costs.tail]
    if kept is not None:
        atomic_write.write(kept, json.dumps({"seconds": found}) + "\n")
    return found


def _count(model: nn.Module) -> int:
    """Return the number of blocks of the model."""
    return len(model.get_submodule(plan_of(model).blocks))


def by_time(model: nn.Module, tokens: int, precision: str) -> Costs:
    """Return the seconds of the forward and backward pass of one sequence: the minimum of RUNS runs.

    The model is whole, and is left without gradients.
    """
    device = next(model.parameters()).device
    sequence = torch.zeros(1, tokens, dtype=torch.int64, device=device)
    with torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32"):
        x = model.embed(sequence).detach().requires_grad_()
        shared = model.shared(torch.arange(tokens, device=device), x)
        found = Costs(
            _seconds(lambda: model.embed(sequence), device),
            [_seconds(partial(block, x, *shared), device) for block in model.get_submodule(plan_of(model).blocks)],
            _seconds(lambda: model.unembed(x), device),
        )
    model.zero_grad(set_to_none=True)
    return found


def _seconds(forward: Callable[[], Tensor], device: torch.device) -> float:
    took = []
    for _ in range(1 + RUNS):
        _wait(device)
        began = time.perf_counter()
        forward().float().sum().backward()
        _wait(device)
        took.append(time.perf_counter() - began)
    return min(took[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
