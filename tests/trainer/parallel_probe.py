"""What `test_parallel.py` looks at: called where ranks can be forked, by `Ranks.call`."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tests.trainer.parity_probe import FEW_STEPS
from trainmaster import models, parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.tools.parity import CONTEXT, Outcome, Row, example, merged, run, train

ROWS = {
    "replicate-3": Row("replicate", {"dpReplicate": 3}, 2),
    "replicate-4": Row("replicate", {"dpReplicate": 4}, 2),
    "fsdp2-2": Row("fsdp2", {"dpShard": 2}, 2),
    "hsdp-2x2": Row("hsdp", {"dpReplicate": 2, "dpShard": 2}, 2),
    "tensor-2": Row("tensor", {"tp": 2}, 2),
    "shard-tensor-2x2": Row("shard-tensor", {"dpShard": 2, "tp": 2}, 2),
    "context-2": Row("context", {"cp": 2}, 2),
    "pipeline-2": Row("pipeline", {"pp": 2}, 4),
    "expert-2": Row("expert", {"dpShard": 2, "ep": 2}, 2, "moe"),
}


def digest(outcome: Outcome) -> str:
    parameters = b"".join(outcome.after[name].tobytes() for name in sorted(outcome.after))
    return hashlib.sha256(json.dumps([loss.hex() for loss in outcome.losses]).encode() + parameters).hexdigest()


def digests(name: str) -> list[str]:
    """Of two runs of the mesh of this name."""
    return [digest(merged(outcomes)) for outcomes in (_in_fp32(name), _run(name))]


@cache
def norms(name: str) -> dict[str, Any]:
    """Of all ranks of a mesh: the local summands of the squared norm of known gradients, sound and not; and what they
    should sum up to."""
    sound, spoilt, (whole, *_) = zip(*_run(name, work=summands), strict=True)
    return {"sound": list(sound), "spoilt": list(spoilt), "whole": whole}


def spread(model: torch.nn.Module, config: TrainingConfig, row: Row) -> torch.nn.Module:
    """This rank's part of the row's model."""
    shape = parallel.StepShape(CONTEXT, 1, row.accumulation)
    return parallel.of_job(model, config, row.ranks, "cpu", shape).model


def summands(config: TrainingConfig, row: Row, rank: int) -> tuple[float, float, float]:
    """All gradients are 0.5; then those of the last rank are infinite. Also: the squared norm of the first ones."""
    model = models.build(config.model, config.seed)
    whole = 0.25 * sum(p.numel() for p in model.parameters())
    model = spread(model, config, row)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
    sound = parallel.gradient_norm_squared(model).item()
    if rank == row.ranks - 1:
        parallel.scale_gradients_(model, math.inf)
    return sound, parallel.gradient_norm_squared(model).item(), whole


def bf16(name: str) -> dict[str, Any]:
    """Losses of a mesh in both precisions, and the precision that the parameters keep."""
    losses, kept = _run(name, work=coarse)[0]
    return {"fp32": _in_fp32(name)[0].losses, "bf16": losses, "kept": kept}


def coarse(config: TrainingConfig, row: Row, rank: int) -> tuple[list[float], list[str]]:
    config = config.model_copy(update={"precision": "bf16"})
    losses = train(config, row, rank).losses
    model = spread(models.build(config.model, config.seed), config, row)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    return losses, sorted({str(p.dtype) for p in model.parameters()})


@cache
def _in_fp32(name: str) -> list[Any]:
    return _run(name)


def _run(name: str, work: Callable[[TrainingConfig, Row, int], Any] = train) -> list[Any]:
    """What `work` returns on all ranks of a mesh."""
    row = ROWS[name]
    with tempfile.TemporaryDirectory() as folder:
        return run(row, example(Path(folder), row, FEW_STEPS), work)
