"""The fields of `training.batch`: the global batch, its micro-batches, how it scales, and the gradient noise scale."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from trainmaster.contract.config.config_model import STEPS, Grown, Strict
from trainmaster.contract.config.divisors_and_multiples import divisors, multiples_near_words


class BatchScaling(Strict):
    """How the global batch and the learning rate change with the number of ranks.

    Linear: Goyal et al., "Accurate, Large Minibatch SGD" (2017). SquareRoot: Krizhevsky, "One weird trick for
    parallelizing convolutional neural networks" (2014); for Adam, Malladi et al., "On the SDEs and Scaling Rules for
    Adaptive Gradient Algorithms" (2022).
    """

    ranks: int = Field(
        ge=1,
        le=2**31,
        description="Number of ranks for which batch.global and optimizer.lr are given. batch.global must be a "
        "multiple of it.",
    )
    learningRate: Literal["Constant", "Linear", "SquareRoot"] = Field(
        description="How optimizer.lr changes with the number of ranks. Constant: not at all. Linear: it is "
        "multiplied by the number of ranks divided by scaling.ranks. SquareRoot: it is multiplied by the "
        "square root of that."
    )

    def factor(self, world_size: int) -> float:
        """Return the factor by which optimizer.lr is multiplied in a world of `world_size` ranks."""
        ratio = world_size / self.ranks
        return {"Constant": 1.0, "Linear": ratio, "SquareRoot": math.sqrt(ratio)}[self.learningRate]


class NoiseScaleConfig(Strict):
    """How often the gradient noise scale is estimated (McCandlish et al., arXiv 1812.06162)."""

    every: int = Field(
        10,
        ge=1,
        le=STEPS,
        description="Number of steps between two estimates. Each estimate reads all gradients once. Default: 10.",
    )


class BatchConfig(Grown):
    """The size of the global batch in sequences, and how ranks divide it into micro-batches."""

    since = frozenset({"autoMicro", "noiseScale", "scaling"})

    global_: int = Field(
        alias="global",
        ge=1,
        le=2**31,
        description="Number of sequences in one optimizer step, over all ranks. It must be a multiple of the number "
        "of data-parallel ranks, which is island × dpReplicate × dpShard. For example, 64 allows 4 and 8 of them, but "
        "not 5 to 7.",
    )
    micro: int | None = Field(
        None,
        ge=1,
        le=2**31,
        description="Number of sequences that a rank computes in one forward pass. It must divide the rank's share "
        "of batch.global, which is batch.global divided by the number of data-parallel ranks. It excludes "
        "autoMicro. Default: the whole share of the rank, and with a pipeline a size that keeps all stages busy.",
    )
    autoMicro: bool = Field(
        False,
        description="If true, the largest micro-batch that the estimated memory of a rank allows is chosen before "
        "training starts. It excludes batch.micro. Default: false.",
    )
    noiseScale: NoiseScaleConfig | None = Field(
        None,
        description="Estimates of the gradient noise scale, which shows how large a useful batch is. It excludes pp "
        "above 1, parallelism.sharding.stage 1 and 2, parallelism.sharding.offload, and islands. Default: "
        "no estimates.",
    )
    scaling: BatchScaling | None = Field(
        None,
        description="A batch that grows and shrinks with the number of ranks of the job. Default: batch.global is the "
        "same for every number of ranks.",
    )

    @model_validator(mode="after")
    def _micro_is_one(self) -> BatchConfig:
        if self.autoMicro and self.micro is not None:
            raise ValueError(
                f"micro {self.micro} sets the size of the micro-batch, and autoMicro chooses it; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _scales(self) -> BatchConfig:
        if self.scaling is not None and self.global_ % self.scaling.ranks:
            raise ValueError(
                f"global {self.global_} is not divisible by scaling.ranks {self.scaling.ranks}; "
                f"{multiples_near_words(self.global_, self.scaling.ranks)}"
            )
        return self

    def at(self, world_size: int) -> BatchConfig:
        """Return the batch of a world of `world_size` ranks: `global` is scaled, and `scaling` is None."""
        if self.scaling is None:
            return self
        return self.model_copy(update={"global_": self.global_ // self.scaling.ranks * world_size, "scaling": None})

    def accumulation(self, world_size: int, divisor: int = 1) -> tuple[int, int]:
        """Return (micro, accumulation) of each rank: global = micro x accumulation x world_size.

        `world_size` is the number of data-parallel ranks. With a `divisor` above 1, micro is the largest divisor of the
        rank's share that is at most the configured micro-batch divided by `divisor`, and at least 1. Raises ValueError,
        with a sentence for a person, if the numbers do not divide.
        """
        if self.scaling is not None:
            return self.at(world_size).accumulation(world_size, divisor)
        share, rest = divmod(self.global_, world_size)
        if rest:
            raise ValueError(
                f"batch.global {self.global_} is not divisible by the {world_size} data-parallel ranks; "
                f"{multiples_near_words(self.global_, world_size)}"
            )
        micro = self.micro or share
        if share % micro:
            raise ValueError(
                f"batch.micro {micro} doesn't divide a rank's share of {share} sequences "
                f"(batch.global {self.global_} / {world_size} ranks)"
            )
        if divisor > 1:
            micro = _largest_divisor(share, max(1, micro // divisor))
        return micro, share // micro


def _largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of `number` that is at most `limit`."""
    return max(n for n in divisors(number) if n <= limit)
