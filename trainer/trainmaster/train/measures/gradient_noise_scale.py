"""The gradient noise scale: how large a batch may become before its samples tell the same things.

McCandlish et al., "An Empirical Model of Large-Batch Training" (arXiv 1812.06162), appendix A.1: the gradient of a step
beside that of its first micro-batch, before replicas have summed theirs, so it takes one more pass over gradients and
no communication of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.contract.config import TrainingConfig
from trainmaster.errors import ConfigError
from trainmaster.models.layout import is_plain

DECAY = 0.95
"""Of what earlier estimates count: one alone has an error as large as itself."""


@dataclass
class NoiseScale:
    """Averages of what the ratio is made of. `small`, `large`: sequences of the two batches. `every`: steps."""

    small: int
    large: int
    every: int = 1
    signal: float = 0.0  # squared norm of the true gradient
    noise: float = 0.0  # trace of the covariance of one sequence's gradient
    weight: float = 0.0  # of the estimates so far: averages begin at zero

    @classmethod
    def of(cls, config: TrainingConfig, degrees: Mapping[str, int], micro: int, accumulation: int) -> NoiseScale | None:
        """None if the job doesn't ask. Raises ConfigError where there is nothing to compare."""
        if config.batch.noiseScale is None:
            return None
        whole, shards = config.batch.global_, degrees["dpShard"]
        sharded = shards * degrees.get("cp", 1) > 1
        if degrees["dpReplicate"] > 1 and (sharded or not is_plain(degrees, config.precision)):
            # torch puts them together where nobody else looks.
            raise ConfigError(
                f"batch.noiseScale: gradients that replicas of shards, or replicas in {config.precision}, have yet to "
                f"sum are out of sight; with parallelism.dpReplicate 1, or with replicas in fp32 alone, it would do"
            )
        if accumulation == 1:
            better = "a smaller batch.micro" if micro > 1 else "a larger batch.global"
            raise ConfigError(
                f"batch.noiseScale compares a step's gradient with its first micro-batch's, and a rank has but one, of "
                f"{micro} of the {whole} sequences; {better} would do"
            )
        # Norms are counted on one replica.
        return cls(micro * shards, whole, config.batch.noiseScale.every)

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def add(self, small_squared: float, large_squared: float) -> None:
        """Squared norms of both batches' gradients, each the mean of its sequences. What isn't finite is left out."""
        if not (math.isfinite(small_squared) and math.isfinite(large_squared)):
            return
        signal = (self.large * large_squared - self.small * small_squared) / (self.large - self.small)
        noise = (small_squared - large_squared) / (1 / self.small - 1 / self.large)
        self.signal += (1 - DECAY) * (signal - self.signal)
        self.noise += (1 - DECAY) * (noise - self.noise)
        self.weight += (1 - DECAY) * (1 - self.weight)

    @property
    def value(self) -> float | None:
        """In sequences; None while the averages make no sense, as those of few estimates may not."""
        if not self.weight or self.signal <= 0 or self.noise <= 0:
            return None
        return self.noise / self.signal

    def words(self) -> str:
        """For a person, at the end of a run; "" without an estimate."""
        value = self.value
        if value is None:
            return ""
        return (
            f"gradient noise scale: about {value:,.0f} sequences, and batch.global is {self.large:,}; below it a "
            f"larger batch learns nearly as much from each sequence, above it ever less"
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"signal": self.signal, "noise": self.noise, "weight": self.weight}

    def load(self, state: dict[str, Any]) -> None:
        """`state` of a checkpoint; {}: one without. Sizes of batches may have changed since: both averages are of one
        sequence."""
        self.signal, self.noise = float(state.get("signal", 0.0)), float(state.get("noise", 0.0))
        self.weight = float(state.get("weight", 0.0))
