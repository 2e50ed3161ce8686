"""What the rows of the parity table train: a tiny model on a tiny text, or on tiny images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trainmaster.contract.config import TrainingConfig
from trainmaster.tools.parity.rows import Row

STEPS = 10
GLOBAL_BATCH = 24
CONTEXT = 16
SAMPLES_PER_STEP = 15
"""The samples of the data per step of the run: fewer than a step takes, so that an epoch ends within the run."""

MODELS: dict[str, dict[str, Any]] = {
    "bert": {"layers": 4, "heads": 4, "width": 32},
    "cnn": {"layers": 2, "width": 8, "classes": 3},
    "gpt": {"layers": 4, "heads": 4, "width": 32},
    "llama": {"layers": 4, "heads": 4, "kv_heads": 4, "width": 32},
    "moe": {"layers": 4, "heads": 4, "width": 32, "hidden": 32, "experts": 4},
}


def example(folder: Path, row: Row, steps: int = STEPS) -> TrainingConfig:
    """Write a row's data into `folder`, and return the job that trains on it.

    The fewer steps, the less data: an epoch always ends when two thirds of the steps are done.
    """
    samples = SAMPLES_PER_STEP * steps
    context = {} if row.model == "cnn" else {"context": CONTEXT}
    data = {"path": str(folder)} if context else {"source": "arrays", "path": str(folder)}
    if not context:
        images = np.random.default_rng(7).integers(0, 256, (samples, 1, 8, 8))
        np.save(folder / "inputs.npy", images.astype(np.uint8))
        np.save(folder / "labels.npy", np.arange(samples) % 3)
    letters = np.random.default_rng(7).choice(list(b"abcdefghij \n"), size=samples * CONTEXT + 5)
    (folder / "text.txt").write_bytes(bytes(letters.tolist()))
    return TrainingConfig.model_validate(
        {
            "model": {"name": row.model, "options": {**MODELS[row.model], **context, **row.options}},
            "data": data,
            "steps": steps,
            "batch": {"global": GLOBAL_BATCH},
            "parallelism": {"island": row.islands} if row.islands else dict(row.parallelism),
            **row.training,
            "seed": 3,
        }
    )
