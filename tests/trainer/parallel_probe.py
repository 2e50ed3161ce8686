"""What `test_parallel.py` looks at, run in a process of its own: ranks are forked, and pytest's process has used torch.

python parallel_probe.py NAME   prints JSON
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from trainmaster import models, parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.parity import CONTEXT, Outcome, Row, example, merged, run, train

ROWS = {
    "replicate-3": Row("replicate", {"dp_replicate": 3}, 2),
    "replicate-4": Row("replicate", {"dp_replicate": 4}, 2),
    "fsdp2-2": Row("fsdp2", {"dp_shard": 2}, 2),
    "hsdp-2x2": Row("hsdp", {"dp_replicate": 2, "dp_shard": 2}, 2),
    "tensor-2": Row("tensor", {"tp": 2}, 2),
    "shard-tensor-2x2": Row("shard-tensor", {"dp_shard": 2, "tp": 2}, 2),
    "context-2": Row("context", {"cp": 2}, 2),
    "pipeline-2": Row("pipeline", {"pp": 2}, 4),
    "expert-2": Row("expert", {"dp_shard": 2, "ep": 2}, 2, "moe"),
}


def digest(outcome: Outcome) -> str:
    parameters = b"".join(outcome.after[name].tobytes() for name in sorted(outcome.after))
    return hashlib.sha256(json.dumps([loss.hex() for loss in outcome.losses]).encode() + parameters).hexdigest()


def digests(folder: Path) -> dict[str, list[str]]:
    """Of each row: the digests of two runs."""
    return {name: [digest(merged(run(row, example(folder, row)))) for _ in range(2)] for name, row in ROWS.items()}


def norms(folder: Path) -> dict[str, dict[str, Any]]:
    """Of each row and all its ranks: the local summands of the squared norm of known gradients, sound and not; and what
    they should sum up to."""
    found = {}
    for name, row in ROWS.items():
        config = example(folder, row)
        sound, spoilt = zip(*run(row, config, work=summands), strict=True)
        whole = sum(p.numel() for p in models.build(config.model, config.seed).parameters()) * 0.25
        found[name] = {"sound": list(sound), "spoilt": list(spoilt), "whole": whole}
    return found


def spread(config: TrainingConfig, row: Row) -> torch.nn.Module:
    """This rank's part of the row's model."""
    model = models.build(config.model, config.seed)
    shape = parallel.StepShape(CONTEXT, 1, row.accumulation)
    return parallel.of_job(model, config, row.ranks, "cpu", shape).model


def summands(config: TrainingConfig, row: Row, rank: int) -> tuple[float, float]:
    """All gradients are 0.5; then those of the last rank are infinite."""
    model = spread(config, row)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
    sound = parallel.gradient_norm_squared(model).item()
    if rank == row.ranks - 1:
        parallel.scale_gradients_(model, math.inf)
    return sound, parallel.gradient_norm_squared(model).item()


def bf16(folder: Path) -> dict[str, dict[str, Any]]:
    """Losses in both precisions, and the precision that the parameters keep."""
    found = {}
    for name in ("hsdp-2x2", "pipeline-2", "tensor-2", "expert-2"):
        row = ROWS[name]
        config = example(folder, row)
        coarse = config.model_copy(update={"precision": "bf16"})
        found[name] = {
            "fp32": run(row, config)[0].losses,
            "bf16": run(row, coarse)[0].losses,
            "kept": run(row, coarse, work=kept)[0],
        }
    return found


def kept(config: TrainingConfig, row: Row, rank: int) -> list[str]:
    train(config, row, rank)
    model = spread(config, row)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    return sorted({str(p.dtype) for p in model.parameters()})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        json.dump({"digests": digests(folder), "norms": norms(folder), "bf16": bf16(folder)}, sys.stdout)
