"""The training config, which every rank gets as JSON: `spec.training` of a job, and how often `spec.checkpoint` saves.

Both sides validate with these models: the operator before it creates anything, the trainer before ranks start.
Options of a model or a data source are open maps that the image's own code checks, so that a new model needs no
new CRD. A field that no code obeys does not exist here: it is refused as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

Precision = Literal["fp32", "bf16", "fp16", "fp8"]
Device = Literal["Auto", "CPU", "CUDA", "MPS"]
Recompute = Literal["None", "Full", "Selective", "Reversible"]
Name = Annotated[str, Field(min_length=1, max_length=253)]
Decay = Annotated[float, Field(ge=0, lt=1)]
"""The share that a moving average keeps in each step."""
STEPS = 2**53
"""The most steps that a field can say: what a JSON number holds exactly."""
RANKS = 2**31
"""The highest degree of an axis."""


class Strict(BaseModel):
    """Unknown fields are errors; the wire names are camelCase only where Kubernetes' own are."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True, serialize_by_alias=True)


class Grown(Strict):
    """A model that got fields since trainers of the first images were made: those are not written at their default."""

    since: ClassVar[frozenset[str]]

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what is left out: trainers of images that don't know it would refuse it."""
        fields: dict[str, Any] = serialize(self)
        defaults = {name: type(self).model_fields[name].default for name in self.since}
        return {name: value for name, value in fields.items() if name not in defaults or value != defaults[name]}


class ModelConfig(Strict):
    name: Name = Field(
        "gpt",
        description="The model: the name of a built-in model (gpt, llama, moe, bert or cnn), or module:function of "
        "your own code. Default: gpt.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the model, such as layers and width. The trainer checks them before any rank starts, "
        "and docs/models.md describes them. Default: the options of the model.",
    )


class DataConfig(Strict):
    source: Name = Field(
        "text",
        description="The kind of data: the name of a built-in source, for example text for a folder of text files "
        "that are read as bytes. Default: text.",
    )
    path: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="The path of the data, as the ranks see it. @stdlib is the folder of Python's standard library."
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the data source. The trainer checks them before any rank starts, and docs/data.md "
        "describes them. Default: the options of the source.",
    )


class BatchScaling(Strict):
    """A batch that grows and shrinks with the number of ranks, and what becomes of the learning rate then.

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
        """Of the learning rate."""
        ratio = world_size / self.ranks
        return {"Constant": 1.0, "Linear": ratio, "SquareRoot": math.sqrt(ratio)}[self.learningRate]


class NoiseScaleConfig(Strict):
    """The gradient noise scale (McCandlish et al., arXiv 1812.06162)."""

    every: int = Field(
        10,
        ge=1,
        le=STEPS,
        description="Number of steps between two estimates. Each estimate reads all gradients once. Default: 10.",
    )


class BatchConfig(Grown):
    since = frozenset({"autoMicro", "noiseScale", "scaling"})

    global_: int = Field(
        alias="global",
        ge=1,
        le=2**31,
        description="Number of sequences in one optimizer step, over all ranks. It must be a multiple of the number "
        "of data-parallel ranks, which is island × dpReplicate × dpShard.",
    )
    micro: int | None = Field(
        None,
        ge=1,
        le=2**31,
        description="Number of sequences that a rank computes in one forward pass. It must divide the rank's share of "
        "batch.global. It excludes autoMicro. Default: the whole share of the rank, and with a pipeline a "
        "size that keeps all stages busy.",
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
            raise ValueError(f"micro {self.micro} is what autoMicro would find; one of them has to be left out")
        return self

    @model_validator(mode="after")
    def _scales(self) -> BatchConfig:
        if self.scaling is not None and self.global_ % self.scaling.ranks:
            raise ValueError(
                f"global {self.global_} doesn't divide by scaling.ranks {self.scaling.ranks}; "
                f"{multiples_near(self.global_, self.scaling.ranks)}"
            )
        return self

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
    """Muon: Jordan et al. (2024), with the scale of Liu et al. (arXiv 2502.16982), so that lr and weightDecay are those
    of adamw, which it leaves embedding, head and vectors to.
    """

    name: Literal["adamw", "sgd", "muon"] = Field(
        "adamw",
        description="The optimizer. adamw: AdamW. sgd: stochastic gradient descent with momentum. muon: Muon for "
        "matrices, and AdamW for embeddings, the output layer and vectors; it excludes "
        "parallelism.sharding.offload. Default: adamw.",
    )
    lr: float = Field(
        3e-4,
        gt=0,
        le=1e9,
        description="The highest learning rate, which is reached after the warm-up. Default: 0.0003.",
    )
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.95),
        description="The shares of the first and of the second moment that AdamW keeps in each step. They are refused "
        "with sgd. Default: [0.9, 0.95].",
    )
    eps: float = Field(
        1e-8,
        gt=0,
        le=1,
        description="The number that AdamW adds to the denominator of its update. It is refused with sgd. Default: "
        "1e-08.",
    )
    momentum: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="The share of the momentum that is kept in each step. It is refused with adamw. Default: 0.9 for "
        "sgd, and 0.95 for the matrices of muon.",
    )
    weightDecay: float = Field(
        0.1,
        ge=0,
        le=1e6,
        description="Weight decay, which is decoupled from the gradient and multiplied by the learning rate. Vectors "
        "such as biases do not decay. Default: 0.1.",
    )
    warmupSteps: int = Field(
        0,
        ge=0,
        le=STEPS,
        description="Number of steps in which the learning rate rises linearly from 0 to lr. It must be less than "
        "training.steps. Default: 0.",
    )
    schedule: Literal["Cosine", "Constant"] = Field(
        "Cosine",
        description="How the learning rate changes after the warm-up. Cosine: it falls to minLrRatio times lr in the "
        "last step. Constant: it stays at lr. Default: Cosine.",
    )
    minLrRatio: float = Field(
        0.1,
        ge=0,
        le=1,
        description="The learning rate in the last step, as a share of lr. It is refused with schedule Constant. "
        "Default: 0.1.",
    )
    clipNorm: float = Field(
        1.0,
        ge=0,
        le=1e9,
        description="The largest norm of all gradients together. Larger gradients are scaled down to it. 0 means that "
        "gradients are not clipped. Default: 1.0.",
    )

    @property
    def momentum_or_default(self) -> float:
        if self.momentum is not None:
            return self.momentum
        return 0.95 if self.name == "muon" else 0.9

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """With a number for `momentum`: trainers of images that knew a default of 0.9 would refuse null."""
        return {**serialize(self), "momentum": self.momentum_or_default}


AXES = ("island", "pp", "dpReplicate", "dpShard", "cp", "tp")
"""Of the mesh, outermost first: the inner axes get neighbouring ranks."""


class PipelineConfig(Strict):
    """How the stages of axis pp work. GPipe: Huang et al. (arXiv 1811.06965); 1F1B and its interleaved form: Narayanan
    et al. (2104.04473); zero bubble: Qi et al. (2401.10241); DualPipeV: DeepSeek-V3 (2412.19437), cut in half.
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
            raise ValueError(f"stagesPerRank {self.stagesPerRank}: schedule {self.schedule} has {known}; leave it out")
        if not known and self.stagesPerRank == 1:
            raise ValueError(f"stagesPerRank 1 leaves {self.schedule} nothing to interleave; it must be at least 2")
        return self

    def refusal(self, degree: int, micro_batches: int) -> str | None:
        """Why `degree` ranks can't work on so many micro-batches in a step."""
        least = degree * self.stages_per_rank if self.schedule != "GPipe" else 1
        if micro_batches < least:
            return f"parallelism.pipeline: {self.schedule} over pp {degree} needs at least {least} micro-batches"
        if self.schedule.startswith("Interleaved") and micro_batches % degree:
            return f"parallelism.pipeline: {self.schedule} over pp {degree} needs a multiple of {degree} micro-batches"
        return None

    @property
    def stages_per_rank(self) -> int:
        if self.schedule in ("GPipe", "1F1B"):
            return 1
        return self.stagesPerRank or 2


class TensorConfig(Strict):
    """How matrices are split over axis tp (Shoeybi et al., arXiv 1909.08053)."""

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
    """How sequences are split over axis cp. Ulysses: Jacobs et al. (arXiv 2309.14509)."""

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
    """What axis dpShard spares (ZeRO: Rajbhandari et al., arXiv 1910.02054)."""

    stage: Literal[1, 2, 3] = Field(
        3,
        description="The stage of ZeRO, which trades memory for communication within a step. 3: parameters are "
        "gathered block by block. 2: parameters are gathered once in a step. 1: whole gradients are kept "
        "until the last micro-batch too. Between steps everything is sharded in all stages. It is refused "
        "in a pipeline. Default: 3.",
    )
    offload: bool = Field(
        False,
        description="If true, shards and optimizer state are kept in host memory. It excludes optimizer muon, "
        "communication.compression, batch.noiseScale and islands. Default: false.",
    )


class ParallelismConfig(Grown):
    """Degrees of the mesh axes. Their product is the world size.

    island, pp, cp and tp are 1 if left out; of dpReplicate and dpShard one may be left out (derived), or both: then
    ranks that these leave are replicas.
    """

    since = frozenset({"island", "pp", "cp", "tp", "ep", "pipeline", "tensor", "context", "sharding"})

    dpReplicate: int | None = Field(
        None,
        ge=1,
        le=RANKS,
        description="Number of replicas of the model, each of which may be divided into shards. If both dpReplicate "
        "and dpShard are left out, the remaining ranks are replicas. Default: what the other degrees "
        "leave.",
    )
    dpShard: int | None = Field(
        None,
        ge=1,
        le=RANKS,
        description="Number of shards of parameters, gradients and optimizer state (FSDP). Default: what the other "
        "degrees leave if dpReplicate is set, and otherwise 1.",
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
        description="Number of tensor-parallel ranks, each of which holds a part of each matrix. They should be in "
        "one pod, because they exchange the most data. Default: 1.",
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
        description="Settings of sharded data parallelism. They are refused if dpShard × cp is 1. Default: stage 3 "
        "without offload.",
    )

    @model_validator(mode="after")
    def _options_have_an_axis(self) -> ParallelismConfig:
        for options, axis in (("pipeline", "pp"), ("tensor", "tp"), ("context", "cp")):
            if getattr(self, options) is not None and getattr(self, axis) is None:
                raise ValueError(f"{options} says how axis {axis} works, but {axis} isn't given")
        return self

    def resolve(self, world_size: int) -> dict[str, int]:
        """The degree of each axis for a world size; island, pp, cp, tp and ep only where they are above 1.

        Raises ValueError in words.
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
                    f"ep {self.ep} doesn't divide dpShard x cp = {shards} ranks, which experts are dealt out to; "
                    f"{', '.join(map(str, divisors(shards)))} would"
                )
            degrees["ep"] = self.ep
        return degrees

    @property
    def inner(self) -> dict[str, int]:
        """The degrees above 1 of axes along which ranks work on the same samples."""
        return {axis: n for axis in ("pp", "cp", "tp") if (n := getattr(self, axis) or 1) > 1}

    def data_ranks(self, world_size: int) -> int:
        """How many different shares a batch has. Raises ValueError in words."""
        degrees = self.resolve(world_size)
        return degrees.get("island", 1) * degrees["dpReplicate"] * degrees["dpShard"]

    def _all_degrees(self, world_size: int) -> dict[str, int]:
        """The degree of each axis but ep, in any order. Raises ValueError that says what the given degrees make, and
        how many ranks there are."""
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
            (missing,) = {"dpReplicate", "dpShard"} - {*data} if data else {""}
            end = f", so {missing} can't be derived" if missing else f"; {multiples_near(world_size, product)}"
            raise ValueError(f"{names}{equals} doesn't divide the job's {world_size} ranks{end}")
        derived = {"dpReplicate": left, "dpShard": 1} if "dpReplicate" not in data else {"dpShard": left}
        return {**derived, **given}


BUCKET_MIB = 25
"""DistributedDataParallel's: large enough to use the network well, small enough to begin early."""


class CompressionConfig(Strict):
    """What replicas send of gradients instead of all, once per step. What PowerSGD (Vogels et al., arXiv 1905.13727)
    and TopK (Aji and Heafield, arXiv 1704.05021) leave out is added to the next step's (1901.09847).
    """

    method: Literal["fp16", "bf16", "PowerSGD", "TopK"] = Field(
        description="How gradients are compressed. fp16 and bf16: all numbers are rounded to 16 bits. PowerSGD: "
        "matrices are replaced by products of narrow factors. TopK: only the largest elements are sent. "
        "PowerSGD and TopK add what they left out to the next step; they exclude precision fp16."
    )
    rank: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Number of columns of PowerSGD's factors. It is refused with other methods. Default: 8.",
    )
    share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="The share of all elements that TopK sends, between 0 and 1. It is refused with other methods. "
        "Default: 0.1.",
    )
    warmupSteps: int = Field(
        0,
        ge=0,
        le=STEPS,
        description="Number of steps at the beginning of the run in which gradients are not compressed. It is refused "
        "with methods fp16 and bf16. Default: 0.",
    )

    @model_validator(mode="after")
    def _options_have_a_method(self) -> CompressionConfig:
        for option, method in (("rank", "PowerSGD"), ("share", "TopK")):
            if getattr(self, option) is not None and self.method != method:
                raise ValueError(f"{option} is of method {method}, but method is {self.method}; leave it out")
        if self.warmupSteps and not self.keeps_error:
            raise ValueError(f"warmupSteps is of methods PowerSGD and TopK, but method is {self.method}; leave it out")
        return self

    @property
    def rank_or_default(self) -> int:
        return self.rank or 8

    @property
    def share_or_default(self) -> float:
        return self.share or 0.1

    @property
    def keeps_error(self) -> bool:
        return self.method in ("PowerSGD", "TopK")


class OuterConfig(Strict):
    """What islands do with how far they have come. lr 1 and momentum 0 is local SGD (Stich, arXiv 1805.09767): they
    take the mean. The defaults are DiLoCo's (2311.08105).
    """

    every: int = Field(
        50,
        ge=1,
        le=2**31,
        description="Number of steps that an island trains alone between two exchanges. Default: 50.",
    )
    lr: float = Field(
        0.7,
        gt=0,
        le=10,
        description="Learning rate of the outer optimizer, which is SGD. With 1 and momentum 0 the islands take the "
        "mean of their parameters (local SGD). Default: 0.7.",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of the outer optimizer. Default: 0.9.")
    nesterov: bool = Field(True, description="If true, the outer optimizer uses Nesterov momentum. Default: true.")
    fragments: int = Field(
        1,
        ge=1,
        le=1024,
        description="Number of parts of the model that are exchanged in turn, so that less is sent at once. It must "
        "not be greater than every. Default: 1.",
    )
    send: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="The number format in which islands send how far their parameters have moved. Default: fp32.",
    )

    @model_validator(mode="after")
    def _fragments_have_turns(self) -> OuterConfig:
        if self.fragments > self.every:
            raise ValueError(
                f"fragments {self.fragments} can't all have a turn within every {self.every} steps; at most "
                f"{self.every} would do"
            )
        return self


class CommunicationConfig(Grown):
    """How gradients are summed over replicas (axis dpReplicate), and what islands (axis island) exchange."""

    since = frozenset({"outer"})

    bucketMiB: int = Field(
        BUCKET_MIB,
        ge=1,
        le=2**20,
        description="Size in MiB of the buckets in which gradients are sent while the backward pass still runs. It is "
        "refused where gradients are not sent in buckets: with compression, with a precision other than "
        "fp32, and with dpShard, cp or tp above 1. Default: 25.",
    )
    compression: CompressionConfig | None = Field(
        None,
        description="Compression of the gradients that replicas send. It needs dpReplicate 2 or more, and it excludes "
        "sharding.offload and islands. Default: gradients are sent whole, in fp32.",
    )
    outer: OuterConfig | None = Field(
        None,
        description="What islands exchange, and how often. It needs parallelism.island 2 or more. Default: the "
        "settings of DiLoCo.",
    )


class CheckpointConfig(Grown):
    since = frozenset({"keepBest"})

    every: int = Field(
        50,
        ge=1,
        le=STEPS,
        description="Number of steps between two checkpoints on storage. The last step is always saved. It is refused "
        "for scripts, which decide themselves when they save. Default: 50.",
    )
    keep: int = Field(
        3,
        ge=1,
        le=1000,
        description="Number of complete checkpoints that are kept on storage. When there are more, the oldest are "
        "deleted. It is refused for scripts. Default: 3.",
    )
    keepBest: bool = Field(
        False,
        description="If true, each step that has the lowest evaluation loss of the run is saved, and this checkpoint "
        "is kept until another step has a lower loss. It needs training.evaluation, and it is refused for "
        "scripts. Default: false.",
    )


class EarlyStopConfig(Strict):
    """When a run has learned what it can."""

    patience: int = Field(
        ge=1,
        le=2**31,
        description="Number of evaluations in a row without an improvement after which the run ends with success.",
    )
    minDelta: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="A loss is an improvement only if it is lower than the last improvement by more than this value. "
        "Default: 0.0.",
    )


class EvaluationConfig(Strict):
    """The loss on data that isn't trained on."""

    every: int = Field(
        ge=1, le=STEPS, description="Number of steps between two evaluations. The last step is always evaluated."
    )
    data: DataConfig = Field(description="The data that the loss is computed on.")
    samples: int | None = Field(
        None,
        ge=1,
        le=STEPS,
        description="Number of sequences in an evaluation; they are the same each time. Default: all sequences of the "
        "data.",
    )
    stop: EarlyStopConfig | None = Field(
        None,
        description="When the run ends before its last step, because the loss no longer improves. Default: the run "
        "continues to its last step.",
    )


class DivergenceConfig(Grown):
    """When training has gone wrong though every rank is well. A loss that is not finite always counts."""

    since = frozenset({"normSpikeFactor"})

    spikeFactor: float | None = Field(
        None,
        gt=1,
        le=1e6,
        description="A step has diverged if its loss is greater than this many times the median of the window. "
        "Default: losses are not compared.",
    )
    normSpikeFactor: float | None = Field(
        None,
        gt=1,
        le=1e6,
        description="A step has diverged if the norm of its gradients before clipping is greater than this many times "
        "the median of the window. Default: norms are not compared.",
    )
    window: int = Field(
        100,
        ge=4,
        le=1000,
        description="Number of earlier steps that a step is compared with. Before there are so many steps, none has "
        "diverged. It is refused if neither spikeFactor nor normSpikeFactor is set. Default: 100.",
    )


class TensorBoardConfig(Strict):
    directory: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="The directory for event files. Default: the folder tensorboard in the output folder of the run.",
    )


class MlflowConfig(Strict):
    trackingUri: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="The address of an MLflow server, or a folder. Default: the variable MLFLOW_TRACKING_URI, or the "
        "folder mlruns in the output folder of the run.",
    )
    experiment: str | None = Field(
        None,
        min_length=1,
        max_length=500,
        description="The name of the MLflow experiment. Default: the variable MLFLOW_EXPERIMENT_NAME, or the name of "
        "the job.",
    )
    run: str | None = Field(
        None, min_length=1, max_length=500, description="The name of the MLflow run. Default: the name of the job."
    )


class LoggersConfig(Grown):
    """Where the numbers of steps and evaluations go beside metrics.jsonl."""

    since = frozenset({"mlflow"})

    tensorBoard: TensorBoardConfig | None = Field(
        None,
        description="Event files for TensorBoard. The image needs the package tensorboardX. Default: no event files.",
    )
    mlflow: MlflowConfig | None = Field(
        None,
        description="A run in MLflow. The image needs the package mlflow-skinny or mlflow. Default: no run in MLflow.",
    )


class ProfileConfig(Strict):
    """Steps that every rank records, with one page made of them."""

    steps: tuple[Annotated[int, Field(ge=1, le=STEPS)], Annotated[int, Field(ge=1, le=STEPS)]] = Field(
        description="The first and the last step that are recorded. They are at most 100 steps, and the last one must "
        "not be greater than training.steps."
    )

    @model_validator(mode="after")
    def _in_order(self) -> ProfileConfig:
        first, last = self.steps
        if not first <= last < first + 100:
            raise ValueError(f"steps [{first}, {last}] aren't a first and a last step with at most 100 in all")
        return self


def precision_refusal(precision: str, recompute: str) -> str | None:
    """Why blocks can't compute in this precision with these techniques."""
    if precision == "fp8" and recompute == "Reversible":
        return (
            "precision fp8 rounds a block's halves as they are computed forwards, and recompute Reversible has to "
            "find the same bits backwards; bf16 would do, or recompute Full"
        )
    return None


def compile_refusal(parallelism: ParallelismConfig, recompute: str) -> str | None:
    """Why blocks can't be compiled with this parallelism."""
    for axis in ("tp", "cp", "ep"):
        degree = getattr(parallelism, axis) or 1
        if degree > 1:
            return (
                f"compile is of blocks that compute alone, and with parallelism.{axis} {degree} they talk to other "
                f"ranks; {axis} 1 would do, or compile left out"
            )
    schedule = parallelism.pipeline.schedule if parallelism.pipeline is not None else ""
    if schedule in ("InterleavedZeroBubble", "ZBV", "DualPipeV"):
        return (
            f"compile leaves a block's backward pass in one piece, and parallelism.pipeline.schedule {schedule} "
            f"cuts it in two; 1F1B, Interleaved1F1B or GPipe would do, or compile left out"
        )
    if recompute == "Reversible":
        return "compile can't see into blocks that recompute Reversible runs backwards; one of them has to be left out"
    return None


class TrainingSpec(Grown):
    """What a run of our own trainer computes: `spec.training` of a job."""

    since = frozenset(
        {
            "deterministic",
            "device",
            "matmulPrecision",
            "recompute",
            "compile",
            "communication",
            "evaluation",
            "loggers",
            "profile",
        }
    )

    model: ModelConfig = Field(default_factory=ModelConfig, description="The model that is trained.")
    data: DataConfig = Field(description="The data that the model is trained on.")
    steps: int = Field(ge=1, le=STEPS, description="Number of optimizer steps after which the run is finished.")
    batch: BatchConfig = Field(
        description="The size of the batch, and how it is divided among the ranks. It can be changed only while the "
        "job is suspended."
    )
    optimizer: OptimizerConfig = Field(
        default_factory=OptimizerConfig,
        description="The optimizer, its learning rate, and the schedule of the learning rate.",
    )
    parallelism: ParallelismConfig = Field(
        default_factory=ParallelismConfig,
        description="How model and batch are divided among the ranks. The product of the degrees of island, pp, "
        "dpReplicate, dpShard, cp and tp is the number of ranks. It can be changed only while the job is suspended.",
    )
    device: Device = Field(
        "Auto",
        description="The device that each rank computes on. Auto: one CUDA device for each rank, or the CPU if the "
        "machine has fewer devices than ranks. CPU: the CPU. CUDA: one CUDA device for each rank, and too "
        "few devices are an error. MPS is refused, because it lacks float64, in which losses are summed. "
        "Default: Auto.",
    )
    precision: Precision = Field(
        "fp32",
        description="The number format of the computation; the optimizer always keeps weights in fp32. fp16 uses a "
        "loss scale that adapts itself. fp8 computes the linear layers of blocks in 8 bits and everything "
        "else in bf16; it excludes recompute Reversible. Default: fp32.",
    )
    matmulPrecision: Literal["Highest", "High", "Medium"] = Field(
        "Highest",
        description="Precision of matrix products in fp32. Highest: full fp32. High: TF32 on a GPU. Medium: also bf16 "
        "on a CPU with oneDNN. It has no effect where the device has no faster product. Default: Highest.",
    )
    recompute: Recompute = Field(
        "None",
        description="What the blocks of the model compute a second time in the backward pass, in order to need less "
        "memory. None: nothing. Selective: everything except matrix products and attention. Full: "
        "everything. Reversible: also the inputs of the blocks, which needs a model with "
        "options.reversible and excludes precision fp8 and compile. Default: None.",
    )
    compile: bool = Field(
        False,
        description="If true, each block of the model is compiled with torch.compile. The image needs a C++ compiler. "
        "It excludes tp, cp and ep above 1, recompute Reversible, and the pipeline schedules "
        "InterleavedZeroBubble, ZBV and DualPipeV. Default: false.",
    )
    communication: CommunicationConfig | None = Field(
        None,
        description="How replicas sum their gradients, and what islands exchange. Default: gradients are summed in "
        "fp32, and islands work as in DiLoCo.",
    )
    divergence: DivergenceConfig = Field(
        default_factory=DivergenceConfig,
        description="When a training step is considered to have diverged, although no rank has failed. A loss that is "
        "not finite always is.",
    )
    evaluation: EvaluationConfig | None = Field(
        None, description="The loss on data that the model is not trained on. Default: there are no evaluations."
    )
    loggers: LoggersConfig | None = Field(
        None,
        description="Additional loggers of metrics. The file metrics.jsonl in the output folder is always written. "
        "Default: no additional logger.",
    )
    profile: ProfileConfig | None = Field(
        None,
        description="A few steps that every rank records, in order to show where their time goes. Default: nothing is "
        "recorded.",
    )
    seed: int = Field(
        0,
        ge=0,
        lt=2**63,
        description="The seed of all random numbers of the run: the initial weights, the order of the data and "
        "dropout. Default: 0.",
    )
    deterministic: bool = Field(
        False,
        description="If true, only kernels are used that give the same bits each time, which can be slower. An "
        "operation that has no such kernel on a GPU ends the run. Default: false.",
    )

    def refusals(self) -> tuple[Callable[[], str | None], ...]:
        """Return the rules across fields. Each returns the first breach that it finds in a sentence, or None; before a
        colon stands the field that a person would change, if it is one field."""
        return (
            self.warm_up_refusal,
            self.profile_refusal,
            self.muon_refusal,
            self.compile_refusal,
            self.compression_refusal,
            self.island_refusal,
            self.noise_refusal,
            self.precision_refusal,
        )

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        for refusal in self.refusals():
            if words := refusal():
                raise ValueError(words)
        return self

    def warm_up_refusal(self) -> str | None:
        """Why the learning rate can't warm up for so many steps."""
        if self.optimizer.warmupSteps < self.steps:
            return None
        return f"optimizer.warmupSteps: less than the {self.steps} steps is expected, not {self.optimizer.warmupSteps}"

    def profile_refusal(self) -> str | None:
        """Why these steps can't be recorded."""
        if self.profile is None or self.profile.steps[1] <= self.steps:
            return None
        return f"profile.steps: they end at {self.profile.steps[1]}, and the run has {self.steps} steps"

    def precision_refusal(self) -> str | None:
        """Why blocks can't compute in this precision with these techniques."""
        return precision_refusal(self.precision, self.recompute)

    def muon_refusal(self) -> str | None:
        """Why muon can't work with this parallelism."""
        sharding = self.parallelism.sharding
        if self.optimizer.name == "muon" and sharding is not None and sharding.offload:
            return (
                "optimizer.name muon computes with whole matrices on the device, and parallelism.sharding.offload "
                "keeps their shards in host memory; adamw would do, or offload left out"
            )
        return None

    def compile_refusal(self) -> str | None:
        """Why blocks can't be compiled with this parallelism."""
        return compile_refusal(self.parallelism, self.recompute) if self.compile else None

    @property
    def outer(self) -> OuterConfig | None:
        """Of islands; None if there is but one."""
        if (self.parallelism.island or 1) == 1:
            return None
        return (self.communication.outer if self.communication is not None else None) or OuterConfig()

    def noise_refusal(self) -> str | None:
        """Why the gradient noise scale can't be told with this parallelism."""
        sharding = self.parallelism.sharding
        if self.batch.noiseScale is None:
            return None
        if (self.parallelism.pp or 1) > 1:
            return "batch.noiseScale: a pipeline never has the gradients of one micro-batch alone; pp 1 would do"
        if sharding is not None and sharding.stage < 3:
            return (
                f"batch.noiseScale: with parallelism.sharding.stage {sharding.stage} gradients are out of sight until "
                f"the last micro-batch; 3 would do"
            )
        if sharding is not None and sharding.offload:
            return (
                "batch.noiseScale: with parallelism.sharding.offload the gradients of one micro-batch are still on "
                "their way to host memory when the next one begins; one of them has to be left out"
            )
        if self.outer is not None:
            return "batch.noiseScale is of one batch that all ranks share; islands have one each"
        return None

    def island_refusal(self) -> str | None:
        """Why there can't be islands as the config has them."""
        communication, sharding = self.communication, self.parallelism.sharding
        if self.outer is None:
            if communication is not None and communication.outer is not None:
                return "communication.outer says what islands exchange; parallelism.island, 2 or more, would make some"
            return None
        if communication is not None and communication.compression is not None:
            return (
                "communication.compression is of gradients, which islands don't exchange; communication.outer.send "
                "bf16 halves what they do"
            )
        if self.precision == "fp16":
            return "parallelism.island: islands have no loss scale in common, as fp16 needs; bf16 or fp32 would do"
        if sharding is not None and sharding.offload:
            return (
                "parallelism.island: parameters are exchanged where ranks compute, and parallelism.sharding.offload "
                "keeps them elsewhere; one of them has to be left out"
            )
        return None

    def compression_refusal(self) -> str | None:
        """Why gradients can't be compressed with this parallelism and precision."""
        compression = self.communication.compression if self.communication is not None else None
        if compression is None:
            return None
        where = "communication.compression"
        if self.parallelism.dpReplicate == 1:
            return (
                f"{where} is of gradients that replicas sum, and parallelism.dpReplicate 1 leaves none; "
                f"2 or more would, or compression left out"
            )
        if self.parallelism.sharding is not None and self.parallelism.sharding.offload:
            return (
                f"{where} works where ranks compute, and parallelism.sharding.offload takes gradients away from there; "
                f"one of them has to be left out"
            )
        if compression.keeps_error and self.precision == "fp16":
            return (
                f"{where}.method {compression.method} keeps what it doesn't send, which steps that overflow in "
                f"precision fp16 would spoil; precision bf16 or fp32 would do, or method fp16 or bf16"
            )
        return None

    def accumulation(self, world_size: int, divisor: int = 1) -> tuple[int, int]:
        """(micro batch, accumulation) of each rank: global = micro x accumulation x data-parallel ranks.

        Raises ValueError in words.
        """
        return share_of_each_rank(self.parallelism, self.batch, world_size, divisor)

    def at(self, world_size: int) -> Self:
        """The config of a world of this size: its batch, and the learning rate that suits it."""
        if self.batch.scaling is None:
            return self
        rate = self.optimizer.lr * self.batch.scaling.factor(world_size)
        optimizer = self.optimizer.model_copy(update={"lr": rate})
        return self.model_copy(update={"batch": self.batch.at(world_size), "optimizer": optimizer})


class TrainingConfig(TrainingSpec):
    """The config text that every rank reads: what to compute, and when to save it."""

    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)

    def refusals(self) -> tuple[Callable[[], str | None], ...]:
        """Return the rules of what is computed, and that of the best checkpoint."""
        return (*super().refusals(), self.best_refusal)

    def best_refusal(self) -> str | None:
        """Why the best checkpoint can't be kept."""
        return best_refusal(self.checkpoint, self.evaluation)


def best_refusal(checkpoint: CheckpointConfig, evaluation: EvaluationConfig | None) -> str | None:
    """Why the best checkpoint can't be kept; before the colon stands the field."""
    if not checkpoint.keepBest or evaluation is not None:
        return None
    return "checkpoint.keepBest: the best checkpoint is known by its evaluation loss; training.evaluation is missing"


def share_of_each_rank(
    parallelism: ParallelismConfig, batch: BatchConfig, world_size: int, divisor: int = 1
) -> tuple[int, int]:
    """(micro batch, accumulation) in a world of this size. Raises ValueError in words when it can't be one."""
    ranks = parallelism.data_ranks(world_size)
    batch = batch.at(world_size)
    pipeline, stages = parallelism.pipeline or PipelineConfig(), parallelism.pp or 1
    if stages == 1:
        return batch.accumulation(ranks, divisor)
    if batch.micro is None and batch.global_ % ranks == 0:
        # Micro-batches are what keeps the stages busy: with twice as many a third of the time is lost at most.
        share = batch.global_ // ranks
        legal = [n for n in divisors(share) if pipeline.refusal(stages, n) is None]
        wanted = min((n for n in legal if n >= 2 * stages), default=max(legal, default=share))
        batch = batch.model_copy(update={"micro": share // wanted})
    micro, accumulation = batch.accumulation(ranks, divisor)
    refusal = pipeline.refusal(stages, accumulation)
    if refusal:
        raise ValueError(
            f"{refusal}, and batch.global {batch.global_} over {ranks} data-parallel ranks makes {accumulation}"
        )
    return micro, accumulation


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({n for low in small for n in (low, number // low)})


def _largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return max(n for n in divisors(number) if n <= limit)


def multiples_near(number: int, of: int) -> str:
    """The multiples of `of` next to `number`, which isn't one: the end of a sentence about what would divide."""
    below = number // of * of
    return f"{below} and {below + of} would" if below else f"{of} would be the smallest"
