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
from trainmaster.parity import Outcome, Row, example, run, train

MESHES = {
    "replicate-3": {"dp_replicate": 3},
    "replicate-4": {"dp_replicate": 4},
    "fsdp2-2": {"dp_shard": 2},
    "hsdp-2x2": {"dp_replicate": 2, "dp_shard": 2},
}


def digest(outcome: Outcome) -> str:
    parameters = b"".join(value.tobytes() for value in outcome.after.values())
    return hashlib.sha256(json.dumps([loss.hex() for loss in outcome.losses]).encode() + parameters).hexdigest()


def digests(config: TrainingConfig) -> dict[str, list[str]]:
    """Of each mesh: the digests of all ranks of two runs."""
    found = {}
    for name, mesh in MESHES.items():
        row = Row(name, mesh, accumulation=2)
        found[name] = [digest(outcome) for _ in range(2) for outcome in run(row, config)]
    return found


def norms(config: TrainingConfig) -> dict[str, dict[str, list[float]]]:
    """Of each mesh and all its ranks: the local summands of the squared norm of known gradients, sound and not."""
    found = {}
    for name, mesh in MESHES.items():
        sound, spoilt = zip(*run(Row(name, mesh), config, work=summands), strict=True)
        found[name] = {"sound": list(sound), "spoilt": list(spoilt)}
    return found


def summands(config: TrainingConfig, row: Row, rank: int) -> tuple[float, float]:
    """All gradients are 0.5; then those of the last rank are infinite."""
    model = models.build(config.model, config.seed)
    parallel.parallelize(model, parallel.make_mesh(row.mesh, "cpu"), config)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    sound = parallel.gradient_norm_squared(model).item()
    if rank == row.ranks - 1:
        parallel.scale_gradients_(model, math.inf)
    return sound, parallel.gradient_norm_squared(model).item()


def bf16(config: TrainingConfig) -> dict[str, Any]:
    """Losses in both precisions, and the precision that the parameters keep."""
    row = Row("hsdp", MESHES["hsdp-2x2"])
    coarse = config.model_copy(update={"precision": "bf16"})
    return {
        "fp32": run(row, config)[0].losses,
        "bf16": run(row, coarse)[0].losses,
        "kept": run(row, coarse, work=kept)[0],
    }


def kept(config: TrainingConfig, row: Row, rank: int) -> list[str]:
    train(config, row, rank)
    model = models.build(config.model, config.seed)
    parallel.parallelize(model, parallel.make_mesh(row.mesh, "cpu"), config)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    return sorted({str(p.dtype) for p in model.parameters()})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        config = example(Path(folder))
        json.dump({"digests": digests(config), "norms": norms(config), "bf16": bf16(config)}, sys.stdout)
