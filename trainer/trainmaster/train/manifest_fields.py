"""What a checkpoint's manifest says of a training besides its tensors: the place in the data, the batch, the scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmaster.data import data_position

if TYPE_CHECKING:
    from trainmaster.train.loop import Training


def manifest_fields(training: Training) -> dict[str, Any]:
    """Return the fields of the manifest for the last completed step, as JSON values."""
    config, divergence = training.config, training.numbers.divergence
    scale, scores, noise = training.scale, training.evaluations.scores, training.noise
    return {
        "mesh": training.degrees,
        "data": data_position.write(training.source, training.consumed),
        "rng": {"kind": "keyed", "seed": config.seed},
        "batch": {
            "global": config.batch.global_,
            "micro": training.micro,
            "accumulation": training.accumulation,
        },
        "numbers": training.numbers.of(training.step),
        "losses": divergence.losses(),
        "norms": divergence.norms(),
        "model": training.described,
        "optimizer": config.optimizer.name,
        "config_sha256": training.config_sha256,
        **({"scaler": scale.state()} if scale.on else {}),
        **({"evaluation": scores.state()} if scores is not None else {}),
        **({"noise": noise.state()} if noise is not None else {}),
    }
