"""The training config: what `spec.training` of a job holds, and what every rank gets as JSON.

Both sides validate with these models: the operator before it creates anything, the trainer before ranks start.
Options of a model or a data source are open maps that the image's own code checks, so that a new model needs no
new CRD. A field that no code obeys does not exist here: it is refused as unknown.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

Name = Annotated[str, Field(min_length=1, max_length=253)]


class Strict(BaseModel):
    """Unknown fields are errors; the wire names are camelCase only where Kubernetes' own are."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True, serialize_by_alias=True)


class ModelConfig(Strict):
    name: Name = Field("gpt", description="A built-in model (gpt).")
    options: dict[str, Any] = Field(default_factory=dict, description="Options of that model; see its docs.")


class DataConfig(Strict):
    source: Name = Field("text", description="A built-in source (text: a folder of text files, as bytes).")
    path: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="Where the data lies. @stdlib is the folder of Python's own standard library."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of that source; see its docs.")


class BatchScaling(Strict):
    """A batch that grows and shrinks with the number of ranks, and what becomes of the learning rate then.

    Linear: Goyal et al., "Accurate, Large Minibatch SGD" (2017). SquareRoot: Krizhevsky, "One weird trick for
    parallelizing convolutional neural networks" (2014); for Adam, Malladi et al., "On the SDEs and Scaling Rules for
    Adaptive Gradient Algorithms" (2022).
    """

    ranks: int = Field(ge=1, le=2**31, description="The number of ranks for which batch.global and optimizer.lr are.")
    learningRate: Literal["Constant", "Linear", "SquareRoot"] = Field(
        description="optimizer.lr is multiplied by 1, by ranks / batch.scaling.ranks, or by its square root."
    )

    def factor(self, world_size: int) -> float:
        """Of the learning rate."""
        ratio = world_size / self.ranks
        return {"Constant": 1.0, "Linear": ratio, "SquareRoot": math.sqrt(ratio)}[self.learningRate]


class BatchConfig(Strict):
    global_: int = Field(alias="global", ge=1, le=2**31, description="Sequences per optimizer step, over all ranks.")
    micro: int | None = Field(
        None, ge=1, le=2**31, description="Sequences per rank and forward pass. Default: all of a rank's share."
    )
    scaling: BatchScaling | None = Field(
        None,
        description="For jobs that change their size: a batch that does too. Default: batch.global is constant.",
    )

    @model_validator(mode="after")
    def _scales(self) -> BatchConfig:
        if self.scaling is not None and self.global_ % self.scaling.ranks:
            raise ValueError(
                f"global {self.global_} doesn't divide by scaling.ranks {self.scaling.ranks}; "
                f"{multiples_near(self.global_, self.scaling.ranks)}"
            )
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `scaling` where there is none: trainers of images that don't know it would refuse it."""
        fields: dict[str, Any] = serialize(self)
        return {name: value for name, value in fields.items() if name != "scaling" or value is not None}

    def at(self, world_size: int) -> BatchConfig:
        """The batch of a world of this size."""
        if self.scaling is None:
            return self
        return self.model_copy(update={"global_": self.global_ // self.scaling.ranks * world_size, "scaling": None})

    def accumulation(self, world_size: int, divisor: int = 1) -> tuple[int, int]:
        """(micro batch, accumulation) of each rank: global = micro x accumulation x world. ValueError in words.

        `divisor`: the micro batch is at least so many times smaller than the config says, if it can be.
        """
        if self.scaling is not None:
            return self.at(world_size).accumulation(world_size, divisor)
        share, rest = divmod(self.global_, world_size)
        if rest:
            raise ValueError(
                f"batch.global {self.global_} doesn't divide by the {world_size} data-parallel ranks; "
                f"{multiples_near(self.global_, world_size)}"
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


class OptimizerConfig(Strict):
    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = Field(3e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1, description="Of sgd.")
    weightDecay: float = Field(0.1, ge=0)
    warmupSteps: int = Field(0, ge=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    minLrRatio: float = Field(0.1, ge=0, le=1, description="Where the cosine ends, as a share of lr.")
    clipNorm: float | None = Field(1.0, gt=0, description="Global gradient norm. null: no clipping.")


class ParallelismConfig(Strict):
    """Degrees of the mesh axes. Their product is the world size; at most one may be left out (derived)."""

    dp_replicate: int | None = Field(None, ge=1, description="Replicas of the (sharded) model.")
    dp_shard: int | None = Field(None, ge=1, description="Shards of parameters, gradients and optimizer state.")

    def resolve(self, world_size: int) -> dict[str, int]:
        """The degree of each axis for a world size. Raises ValueError in words.

        With neither given, the world is pure data parallel (dp_replicate).
        """
        if world_size < 1:
            raise ValueError(f"a world has at least one rank, not {world_size}")
        replicate, shard = self.dp_replicate, self.dp_shard
        if replicate is None and shard is None:
            return {"dp_replicate": world_size, "dp_shard": 1}
        if replicate is not None and shard is not None:
            if replicate * shard != world_size:
                raise ValueError(
                    f"dp_replicate {replicate} x dp_shard {shard} = {replicate * shard} ranks, "
                    f"but the job has {world_size}"
                )
            return {"dp_replicate": replicate, "dp_shard": shard}
        given, name, other = (
            (replicate, "dp_replicate", "dp_shard") if shard is None else (shard, "dp_shard", "dp_replicate")
        )
        assert given is not None
        if world_size % given:
            raise ValueError(f"{name} {given} doesn't divide the job's {world_size} ranks, so {other} can't be derived")
        return {name: given, other: world_size // given}


class CheckpointConfig(Strict):
    every: int = Field(50, ge=1, description="Steps between checkpoints.")
    keep: int = Field(3, ge=1, le=1000, description="Complete checkpoints to keep; older ones are removed.")


class DivergenceConfig(Strict):
    """When training has gone wrong though every rank is well. A loss that is not finite always counts."""

    spikeFactor: float | None = Field(
        None, gt=1, le=1e6, description="A loss above so many times the median of the window counts as diverged."
    )
    window: int = Field(100, ge=4, le=1000, description="Steps before this one; until there are so many none counts.")


class TrainingConfig(Strict):
    """One training run of our own trainer."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig
    steps: int = Field(ge=1, le=2**53)
    batch: BatchConfig
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    parallelism: ParallelismConfig = Field(default_factory=ParallelismConfig)
    precision: Literal["fp32", "bf16"] = Field("fp32", description="Of the computation; master weights are fp32.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    divergence: DivergenceConfig = Field(default_factory=DivergenceConfig)
    seed: int = Field(0, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _warm_up_fits(self) -> TrainingConfig:
        if self.optimizer.warmupSteps >= self.steps:
            raise ValueError(
                f"optimizer.warmupSteps {self.optimizer.warmupSteps} leaves nothing of the {self.steps} steps; "
                f"it must be lower than steps"
            )
        return self

    def accumulation(self, world_size: int, divisor: int = 1) -> tuple[int, int]:
        """(micro batch, accumulation) of each rank: global = micro x accumulation x world. ValueError in words."""
        return self.batch.accumulation(world_size, divisor)

    def at(self, world_size: int) -> TrainingConfig:
        """The config of a world of this size: its batch, and the learning rate that suits it."""
        if self.batch.scaling is None:
            return self
        rate = self.optimizer.lr * self.batch.scaling.factor(world_size)
        optimizer = self.optimizer.model_copy(update={"lr": rate})
        return self.model_copy(update={"batch": self.batch.at(world_size), "optimizer": optimizer})


def _largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return max(n for low in small for n in (low, number // low) if n <= limit)


def multiples_near(number: int, of: int) -> str:
    """The multiples of `of` next to `number`, which isn't one: the end of a sentence about what would divide."""
    below = number // of * of
    return f"{below} and {below + of} would" if below else f"{of} would be the smallest"
