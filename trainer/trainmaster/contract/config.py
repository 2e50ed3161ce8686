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
    name: Name = Field("gpt", description="A built-in model (gpt), or module:function of one's own.")
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


class NoiseScaleConfig(Strict):
    """The gradient noise scale (McCandlish et al., arXiv 1812.06162)."""

    every: int = Field(10, ge=1, le=STEPS, description="Steps between estimates; it takes a pass over all gradients.")


class BatchConfig(Grown):
    since = frozenset({"autoMicro", "noiseScale", "scaling"})

    global_: int = Field(alias="global", ge=1, le=2**31, description="Sequences per optimizer step, over all ranks.")
    micro: int | None = Field(
        None, ge=1, le=2**31, description="Sequences per rank and forward pass. Default: all of a rank's share."
    )
    autoMicro: bool = Field(
        False, description="micro is the largest that the estimated memory of a rank allows, found before training."
    )
    noiseScale: NoiseScaleConfig | None = Field(
        None, description="Tell how large a batch is worth it, by the gradient noise scale."
    )
    scaling: BatchScaling | None = Field(
        None,
        description="For jobs that change their size: a batch that does too. Default: batch.global is constant.",
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

    name: Literal["adamw", "sgd", "muon"] = "adamw"
    lr: float = Field(3e-4, gt=0, le=1e9)
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.95), description="How much of the moments adamw keeps in each step, of the first and of the second."
    )
    eps: float = Field(1e-8, gt=0, le=1)
    momentum: float | None = Field(None, ge=0, lt=1, description="Of sgd, 0.9 by default; of muon's matrices, 0.95.")
    weightDecay: float = Field(0.1, ge=0, le=1e6)
    warmupSteps: int = Field(0, ge=0, le=STEPS)
    schedule: Literal["Cosine", "Constant"] = "Cosine"
    minLrRatio: float = Field(0.1, ge=0, le=1, description="Where the cosine ends, as a share of lr.")
    clipNorm: float = Field(1.0, ge=0, le=1e9, description="Global gradient norm. 0: no clipping.")

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
        "1F1B", description="The order of forwards and backwards of micro-batches."
    )
    stagesPerRank: int | None = Field(
        None, ge=1, le=64, description="Of the interleaved schedules; 2 by default. Of the others it is given."
    )
    balance: Literal["Parameters", "Compute", "Profile"] = Field(
        "Compute",
        description="What stages have alike: parameters, estimated operations, or time as it is measured at the start.",
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
        True, description="Also slice what lies between the matrices along the sequence (arXiv 2205.05198)."
    )
    vocabulary: bool = Field(True, description="Leave the logits split by vocabulary, and compute the loss so.")


class ContextConfig(Strict):
    """How sequences are split over axis cp. Ulysses: Jacobs et al. (arXiv 2309.14509)."""

    method: Literal["AllGather", "Ulysses"] = Field(
        "AllGather", description="Gather keys and values, or exchange parts of the sequence for heads."
    )
    balance: Literal["HeadTail", "None"] = Field(
        "HeadTail", description="Each rank gets an early and a late chunk, since late tokens attend to more; or one."
    )


class ShardingConfig(Strict):
    """What axis dpShard spares (ZeRO: Rajbhandari et al., arXiv 1910.02054)."""

    stage: Literal[1, 2, 3] = Field(
        3,
        description="Between steps all is sharded. In a step: 3 gathers parameters block by block, 2 once; 1 keeps "
        "whole gradients too, until the last micro-batch.",
    )
    offload: bool = Field(False, description="Keep shards and optimizer state in host memory.")


class ParallelismConfig(Grown):
    """Degrees of the mesh axes. Their product is the world size.

    island, pp, cp and tp are 1 if left out; of dpReplicate and dpShard one may be left out (derived), or both: then
    ranks that these leave are replicas.
    """

    since = frozenset({"island", "pp", "cp", "tp", "ep", "pipeline", "tensor", "context", "sharding"})

    dpReplicate: int | None = Field(None, ge=1, le=RANKS, description="Replicas of the (sharded) model.")
    dpShard: int | None = Field(
        None, ge=1, le=RANKS, description="Shards of parameters, gradients and optimizer state."
    )
    island: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Worlds of their own that agree every communication.outer.every steps: local SGD, DiLoCo.",
    )
    pp: int | None = Field(None, ge=1, le=1024, description="Stages of a pipeline.")
    cp: int | None = Field(None, ge=1, le=1024, description="Parts of each sequence.")
    tp: int | None = Field(None, ge=1, le=1024, description="Parts of each matrix.")
    ep: int | None = Field(
        None, ge=1, le=1024, description="Parts that experts are dealt out to; of the ranks of dpShard x cp."
    )
    pipeline: PipelineConfig | None = Field(None, description="Of axis pp.")
    tensor: TensorConfig | None = Field(None, description="Of axis tp.")
    context: ContextConfig | None = Field(None, description="Of axis cp.")
    sharding: ShardingConfig | None = Field(None, description="Of axis dpShard.")

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
        description="Halves of all numbers; narrow factors of matrices; or the largest elements."
    )
    rank: int | None = Field(None, ge=1, le=1024, description="Columns of PowerSGD's factors; 8 by default.")
    share: float | None = Field(None, gt=0, le=1, description="Of all elements, that TopK sends; 0.1 by default.")
    warmupSteps: int = Field(
        0,
        ge=0,
        le=STEPS,
        description="Steps at the beginning of a run whose gradients are sent whole; of PowerSGD and TopK.",
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

    every: int = Field(50, ge=1, le=2**31, description="Steps that islands train alone.")
    lr: float = Field(0.7, gt=0, le=10, description="Of the outer optimizer, SGD; 1 takes the mean as it is.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Of the outer optimizer.")
    nesterov: bool = Field(True, description="Whether that momentum looks ahead.")
    fragments: int = Field(
        1, ge=1, le=1024, description="Parts of the model that take turns, so that less is sent at once."
    )
    send: Literal["fp32", "bf16"] = Field("fp32", description="What islands send of how far they have come.")

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
        BUCKET_MIB, ge=1, le=2**20, description="Gradients that travel together while the backward pass still runs."
    )
    compression: CompressionConfig | None = Field(None, description="Default: all of them, in fp32.")
    outer: OuterConfig | None = Field(None, description="Of islands. Default: as in DiLoCo.")


class CheckpointConfig(Grown):
    since = frozenset({"keepBest"})

    every: int = Field(50, ge=1, le=STEPS, description="Steps between checkpoints.")
    keep: int = Field(3, ge=1, le=1000, description="Complete checkpoints to keep; older ones are removed.")
    keepBest: bool = Field(
        False,
        description="Save each step with the lowest evaluation loss so far, and keep it until there is a lower one.",
    )


class EarlyStopConfig(Strict):
    """When a run has learned what it can."""

    patience: int = Field(ge=1, le=2**31, description="Evaluations in a row without an improvement that end the run.")
    minDelta: float = Field(0.0, ge=0, le=1e6, description="A loss that is lower by no more is no improvement.")


class EvaluationConfig(Strict):
    """The loss on data that isn't trained on."""

    every: int = Field(ge=1, le=STEPS, description="Steps between evaluations; there is one at the end in any case.")
    data: DataConfig
    samples: int | None = Field(
        None, ge=1, le=STEPS, description="Sequences, the same ones each time. Default: all that the data has."
    )
    stop: EarlyStopConfig | None = Field(None, description="Default: the run goes on to its last step.")


class DivergenceConfig(Grown):
    """When training has gone wrong though every rank is well. A loss that is not finite always counts."""

    since = frozenset({"normSpikeFactor"})

    spikeFactor: float | None = Field(
        None, gt=1, le=1e6, description="A loss above so many times the median of the window counts as diverged."
    )
    normSpikeFactor: float | None = Field(
        None, gt=1, le=1e6, description="The same of the gradients' norm, as it is before clipping."
    )
    window: int = Field(100, ge=4, le=1000, description="Steps before this one; until there are so many none counts.")


class TensorBoardConfig(Strict):
    directory: str | None = Field(
        None, min_length=1, max_length=4096, description="Default: tensorboard in the run's output folder."
    )


class MlflowConfig(Strict):
    trackingUri: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="A server or a folder. Default: MLFLOW_TRACKING_URI, or the folder mlruns in the run's output.",
    )
    experiment: str | None = Field(
        None, min_length=1, max_length=500, description="Default: MLFLOW_EXPERIMENT_NAME, or the job's name."
    )
    run: str | None = Field(None, min_length=1, max_length=500, description="Its name. Default: the job's.")


class LoggersConfig(Grown):
    """Where the numbers of steps and evaluations go beside metrics.jsonl."""

    since = frozenset({"mlflow"})

    tensorBoard: TensorBoardConfig | None = Field(None, description="Event files. The image needs tensorboardX.")
    mlflow: MlflowConfig | None = Field(None, description="One run of MLflow. The image needs mlflow-skinny or mlflow.")


class ProfileConfig(Strict):
    """Steps that every rank records, with one page made of them."""

    steps: tuple[Annotated[int, Field(ge=1, le=STEPS)], Annotated[int, Field(ge=1, le=STEPS)]] = Field(
        description="The first and the last step to record, at most 100 of them."
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

    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig
    steps: int = Field(ge=1, le=STEPS)
    batch: BatchConfig
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    parallelism: ParallelismConfig = Field(default_factory=ParallelismConfig)
    device: Device = Field(
        "Auto",
        description="What ranks compute on. Auto: a CUDA device for each rank, or the CPU for all ranks where the "
        "machine has fewer devices than ranks. CUDA: the same, but too few devices are an error. MPS is "
        "refused: losses are summed in float64, which it lacks.",
    )
    precision: Precision = Field(
        "fp32",
        description="Of the computation; master weights are fp32. fp16: with a loss scale that finds itself. fp8: "
        "linear layers of blocks in 8 bits, each tensor with a scale of its own, the rest in bf16.",
    )
    matmulPrecision: Literal["Highest", "High", "Medium"] = Field(
        "Highest",
        description="Of matrix products in fp32, where the device has quicker ones: High is TF32 on a GPU, Medium bf16 "
        "on a CPU with oneDNN too (torch.set_float32_matmul_precision).",
    )
    recompute: Recompute = Field(
        "None",
        description="What blocks compute once more in the backward pass, to keep less until then: all, or all but "
        "matrix products and attention. Reversible: their inputs too, of a model with options.reversible.",
    )
    compile: bool = Field(False, description="torch.compile of each block. The image needs a C++ compiler.")
    communication: CommunicationConfig | None = Field(None, description="Between replicas.")
    divergence: DivergenceConfig = Field(default_factory=DivergenceConfig)
    evaluation: EvaluationConfig | None = Field(None, description="On data that isn't trained on.")
    loggers: LoggersConfig | None = Field(None, description="Where numbers go besides. Default: nowhere.")
    profile: ProfileConfig | None = Field(None, description="Record a few steps: where their time goes, on each rank.")
    seed: int = Field(0, ge=0, lt=2**63)
    deterministic: bool = Field(
        False,
        description="Compute only with kernels that give the same bits each time, which may be slower. An operation "
        "that has no such kernel on a GPU ends the run (torch.use_deterministic_algorithms).",
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
