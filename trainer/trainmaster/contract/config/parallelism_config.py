"""The fields of `training.parallelism`: the degree of each axis of the mesh, and how each axis works."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from trainmaster.contract.config.config_model import RANKS, Grown, Strict
from trainmaster.contract.config.divisors_and_multiples import divisors, multiples_near, one_of

AXES = ("island", "pp", "dpReplicate", "dpShard", "cp", "tp")
"""The axes of the mesh, outermost first: the inner axes get neighbouring ranks."""


class PipelineConfig(Strict):
    """Settings of pipeline parallelism, axis pp.

    GPipe: Huang et al. (arXiv 1811.06965). 1F1B and Interleaved1F1B: Narayanan et al. (2104.04473).
    InterleavedZeroBubble and ZBV: Qi et al. (2401.10241). DualPipeV: half of the DualPipe of DeepSeek-V3 (2412.19437).
    """

    schedule: Literal["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBV", "DualPipeV"] = Field(
        "1F1B",
        description="The order of the forward and backward passes of micro-batches. All schedules except GPipe need "
        "at least as many micro-batches as there are stages. Default: 1F1B.",
    )
    stagesPerRank: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Number of stages on each rank for Interleaved1F1B and InterleavedZeroBubble, at least 2. The "
        "other schedules have a fixed number: 1 for GPipe and 1F1B, 2 for ZBV and DualPipeV. Default: 2 "
        "for the interleaved schedules.",
    )
    balance: Literal["Parameters", "Compute", "Profile"] = Field(
        "Compute",
        description="What the layers are divided by, so that all stages have equal shares. Parameters: the number of "
        "parameters. Compute: the estimated number of operations. Profile: the time that is measured "
        "before the first step. Default: Compute.",
    )

    @model_validator(mode="after")
    def _stages_suit(self) -> PipelineConfig:
        known = {"GPipe": 1, "1F1B": 1, "ZBV": 2, "DualPipeV": 2}.get(self.schedule)
        if known and self.stagesPerRank not in (None, known):
            raise ValueError(
                f"stagesPerRank {self.stagesPerRank}: schedule {self.schedule} always has {known}; leave it out"
            )
        if not known and self.stagesPerRank == 1:
            raise ValueError(f"stagesPerRank 1: schedule {self.schedule} interleaves at least 2 stages on each rank")
        return self

    def refusal(self, degree: int, micro_batches: int) -> str | None:
        """Return why a pipeline of `degree` ranks cannot run with `micro_batches` micro-batches per step, or None."""
        least = degree * self.stages_per_rank if self.schedule != "GPipe" else 1
        if micro_batches < least:
            return f"parallelism.pipeline: {self.schedule} over pp {degree} needs at least {least} micro-batches"
        if self.schedule.startswith("Interleaved") and micro_batches % degree:
            return f"parallelism.pipeline: {self.schedule} over pp {degree} needs a multiple of {degree} micro-batches"
        return None

    @property
    def stages_per_rank(self) -> int:
        """Return the number of stages on each rank."""
        if self.schedule in ("GPipe", "1F1B"):
            return 1
        return self.stagesPerRank or 2


class TensorConfig(Strict):
    """Settings of tensor parallelism, axis tp, which splits matrices (Shoeybi et al., arXiv 1909.08053)."""

    sequence: bool = Field(
        True,
        description="If true, activations between the matrices are divided along the sequence, which saves memory. "
        "Default: true.",
    )
    vocabulary: bool = Field(
        True,
        description="If true, the logits stay divided by vocabulary, and the loss is computed on these parts. "
        "Default: true.",
    )


class ContextConfig(Strict):
    """Settings of context parallelism, axis cp, which splits sequences. Ulysses is by Jacobs et al. (arXiv
    2309.14509)."""

    method: Literal["AllGather", "Ulysses"] = Field(
        "AllGather",
        description="How ranks attend to the whole sequence. AllGather: they gather keys and values. Ulysses: they "
        "exchange parts of the sequence for attention heads, whose number cp must divide. Default: "
        "AllGather.",
    )
    balance: Literal["HeadTail", "None"] = Field(
        "HeadTail",
        description="Which part of a sequence a rank gets. HeadTail: an early and a late chunk, because late tokens "
        "attend to more tokens. None: one chunk. Default: HeadTail.",
    )


class ShardingConfig(Strict):
    """Settings of sharded data parallelism, axis dpShard (ZeRO: Rajbhandari et al., arXiv 1910.02054)."""

    stage: Literal[1, 2, 3] = Field(
        3,
        description="The stage of ZeRO, which trades memory for communication within a step. 3: parameters are "
        "gathered block by block. 2: parameters are gathered once in a step. 1: whole gradients are kept until the "
        "last micro-batch too. Between steps everything is sharded in all stages. Every value is refused if pp is "
        "above 1, because a pipeline gathers parameters once in a step in any case. Default: 3.",
    )
    offload: bool = Field(
        False,
        description="If true, shards and optimizer state are kept in host memory. It excludes optimizer muon, "
        "communication.compression, batch.noiseScale and islands. Default: false.",
    )


class ParallelismConfig(Grown):
    """The degrees of the mesh axes, whose product is the world size, and the settings of each axis.

    A degree of island, pp, cp, tp or ep that is not set is 1. If one of dpReplicate and dpShard is not set, it is the
    number of ranks divided by the product of all other degrees. If neither is set, dpShard is 1 and dpReplicate is
    derived.
    """

    since = frozenset({"island", "pp", "cp", "tp", "ep", "pipeline", "tensor", "context", "sharding"})

    dpReplicate: int | None = Field(
        None,
        ge=1,
        le=RANKS,
        description="Number of replicas of the model, each of which may be divided into shards. Default: the number "
        "of ranks divided by the product of the other degrees.",
    )
    dpShard: int | None = Field(
        None,
        ge=1,
        le=RANKS,
        description="Number of shards of parameters, gradients and optimizer state (FSDP). Default: if dpReplicate is "
        "set, the number of ranks divided by the product of the other degrees, and otherwise 1.",
    )
    island: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Number of islands. An island is a set of ranks that trains alone and agrees with the other "
        "islands every communication.outer.every steps (local SGD, DiLoCo). It excludes "
        "communication.compression, precision fp16 and sharding.offload. Default: 1.",
    )
    pp: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Number of pipeline-parallel ranks, each of which holds some of the layers. Default: 1.",
    )
    cp: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Number of context-parallel ranks, each of which computes a part of each sequence. Default: 1.",
    )
    tp: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Number of tensor-parallel ranks, each of which holds a part of each matrix. They are "
        "neighbouring ranks and exchange the most data, so let tp divide workers.ranksPerPod: then each group is "
        "within one pod. Nothing else ensures that. tp must divide the numbers of heads and of key and value heads, "
        "the width of the MLP and the vocabulary of the model. It must also divide the tokens of a sequence that each "
        "rank has, unless tensor.sequence is false. Default: 1.",
    )
    ep: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Number of expert-parallel ranks, each of which holds some of the experts of a mixture of "
        "experts. It must divide dpShard × cp, because these ranks share the experts. Default: 1.",
    )
    pipeline: PipelineConfig | None = Field(
        None, description="Settings of pipeline parallelism. They are refused if pp is 1. Default: schedule 1F1B."
    )
    tensor: TensorConfig | None = Field(
        None, description="Settings of tensor parallelism. They are refused if tp is 1. Default: both options are on."
    )
    context: ContextConfig | None = Field(
        None, description="Settings of context parallelism. They are refused if cp is 1. Default: method AllGather."
    )
    sharding: ShardingConfig | None = Field(
        None,
        description="Settings of sharded data parallelism. Set dpShard to 2 or more to shard: the settings alone "
        "shard nothing, and they are refused if dpShard × cp is 1. Default: stage 3 without offload.",
    )

    @model_validator(mode="after")
    def _options_have_an_axis(self) -> ParallelismConfig:
        for options, axis in (("pipeline", "pp"), ("tensor", "tp"), ("context", "cp")):
            if getattr(self, options) is not None and getattr(self, axis) is None:
                raise ValueError(
                    f"{options} configures axis {axis}, but {axis} isn't set; set it, or leave {options} out"
                )
        return self

    def resolve(self, world_size: int) -> dict[str, int]:
        """Return the degree of each axis in a world of `world_size` ranks.

        dpReplicate and dpShard are always in the result; island, pp, cp, tp and ep only if they are above 1. Raises
        ValueError, with a sentence for a person, if the degrees do not fit the number of ranks.
        """
        if world_size < 1:
            raise ValueError(f"a world has at least one rank, not {world_size}")
        found = self._all_degrees(world_size)
        degrees = {axis: found[axis] for axis in AXES if axis in found}
        if (self.ep or 1) > 1:
            assert self.ep is not None
            shards = found["dpShard"] * found.get("cp", 1)
            if shards % self.ep:
                raise ValueError(
                    f"ep {self.ep} doesn't divide dpShard x cp = {shards}, the number of ranks that share the experts; "
                    f"{', '.join(map(str, divisors(shards)))} would"
                )
            degrees["ep"] = self.ep
        return degrees

    @property
    def inner(self) -> dict[str, int]:
        """Return the degrees above 1 of the axes whose ranks work on the same samples: pp, cp and tp."""
        return {axis: n for axis in ("pp", "cp", "tp") if (n := getattr(self, axis) or 1) > 1}

    def data_ranks(self, world_size: int) -> int:
        """Return the number of parts that a batch is divided into: island x dpReplicate x dpShard.

        Raises ValueError, with a sentence for a person, if the degrees do not fit the number of ranks.
        """
        degrees = self.resolve(world_size)
        return degrees.get("island", 1) * degrees["dpReplicate"] * degrees["dpShard"]

    def _all_degrees(self, world_size: int) -> dict[str, int]:
        """Return the degree of each axis except ep, in any order.

        Raises ValueError with a sentence that names the given degrees, their product and the number of ranks.
        """
        outer = {"island": self.island} if self.island and self.island > 1 else {}
        data = {axis: n for axis in ("dpReplicate", "dpShard") if (n := getattr(self, axis)) is not None}
        given = {**outer, **self.inner, **data}
        product = math.prod(given.values())
        names = " x ".join(f"{axis} {given[axis]}" for axis in AXES if axis in given)
        equals = f" = {product}" if len(given) > 1 else ""
        left, rest = divmod(world_size, product)
        if (len(data) == 2 and product != world_size) or (data and equals and product > world_size):
            raise ValueError(f"{names}{equals} ranks, but the job has {world_size}")
        if rest or not left:
            below, above = multiples_near(world_size, product)
            use = f"{below} or {above} ranks"
            if len(given) == 1:
                fits = [n for n in divisors(world_size) if n < product]
                use = f"{next(iter(given))} {one_of(fits)}, or {use}"
            raise ValueError(
                f"{names}{equals} needs a multiple of {product} ranks. Use {use}. The job has {world_size} "
                f"rank{'' if world_size == 1 else 's'}"
            )
        derived = {"dpReplicate": left, "dpShard": 1} if "dpReplicate" not in data else {"dpShard": left}
        return {**derived, **given}
