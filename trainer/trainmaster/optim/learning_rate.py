"""The learning rate as a pure function of the step: warm-up, then constant or a cosine."""

from __future__ import annotations

import math

from trainmaster.contract.config import OptimizerConfig


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the learning rate of a step from 1 to `steps`: linear warm-up, then a cosine to minLrRatio, or
    constant."""
    if step <= config.warmupSteps:
        return config.lr * step / config.warmupSteps
    if config.schedule == "Constant":
        return config.lr
    done = (step - config.warmupSteps) / max(1, steps - config.warmupSteps)
    return config.lr * (config.minLrRatio + (1 - config.minLrRatio) * 0.5 * (1 + math.cos(math.pi * done)))
