"""The gradient noise scale: the size of a batch beyond which further samples add little information.

McCandlish et al., "An Empirical Model of Large-Batch Training" (arXiv 1812.06162), appendix A.1. The gradient of a step
is compared with that of its first micro-batch, before replicas have summed theirs. So it takes one more pass over the
gradients, and no further communication.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.contract.config import TrainingConfig
from trainmaster.errors import ConfigError
from trainmaster.models.allowed_parallelism import is_plain

DECAY = 0.95
"""Weight of earlier estimates in the average: a single estimate has an error as large as itself."""


@dataclass
class NoiseScale:
    """Averages for the noise scale. `small` and `large` are the sizes of the two batches in sequences.

    `every` is the number of steps between two estimates.
    """

    small: int
    large: int
    every: int = 1
    signal: float = 0.0  # squared norm of the true gradient
    noise: float = 0.0  # trace of the covariance of one sequence's gradient
    weight: float = 0.0  # total weight of the estimates so far: averages begin at zero

    @classmethod
    def of(cls, config: TrainingConfig, degrees: Mapping[str, int], micro: int, accumulation: int) -> NoiseScale | None:
        """Return the noise scale of a job, or None if the job does not ask for it.

        Raises ConfigError if the layout leaves nothing to compare.
        """
        if config.batch.noiseScale is None:
            return None
        whole, shards = config.batch.global_, degrees["dpShard"]
        sharded = shards * degrees.get("cp", 1) > 1
        if degrees["dpReplicate"] > 1 and (sharded or not is_plain(degrees, config.precision)):
            # torch adds them to tensors of its own, which we cannot read.
            raise ConfigError(
                f"batch.noiseScale: gradients of replicas of shards, or of replicas in {config.precision}, can't be "
                f"read before they are summed; use parallelism.dpReplicate 1, or replicas in fp32 without shards"
            )
        if accumulation == 1:
            better = "a smaller batch.micro" if micro > 1 else "a larger batch.global"
            raise ConfigError(
                f"batch.noiseScale compares a step's gradient with its first micro-batch's, and a rank has only one, "
                f"of {micro} of the {whole} sequences; {better} would do"
            )
        # Norms are counted on one replica.
        return cls(micro * shards, whole, config.batch.noiseScale.every)

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def add(self, small_squared: float, large_squared: float) -> None:
        """Add the squared norms of both batches' gradients, each the mean over its sequences.

        Numbers that are not finite are ignored.
        """
        if not (math.isfinite(small_squared) and math.isfinite(large_squared)):
            return
        signal = (self.large * large_squared - self.small * small_squared) / (self.large - self.small)
        noise = (small_squared - large_squared) / (1 / self.small - 1 / self.large)
        self.signal += (1 - DECAY) * (signal - self.signal)
        self.noise += (1 - DECAY) * (noise - self.noise)
        self.weight += (1 - DECAY) * (1 - self.weight)

    @property
    def value(self) -> float | None:
        """Return the noise scale in sequences, or None if the averages of the first estimates make no sense yet."""
        if not self.weight or self.signal <= 0 or self.noise <= 0:
            return None
        return self.noise / self.signal

    def words(self) -> str:
        """Return a sentence for the end of a run, or "" without an estimate."""
        value = self.value
        if value is None:
            return ""
        return (
            f"gradient noise scale: about {value:,.0f} sequences, and batch.global is {self.large:,}; below it a "
            f"larger batch learns nearly as much from each sequence, above it ever less"
        )

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"signal": self.signal, "noise": self.noise, "weight": self.weight}

    def load(self, state: dict[str, Any]) -> None:
        """Set the state of a checkpoint, {} if it has none.

        Batch sizes may have changed since, because both averages are per sequence.
        """
        self.signal, self.noise = float(state.get("signal", 0.0)), float(state.get("noise", 0.0))
        self.weight = float(state.get("weight", 0.0))
