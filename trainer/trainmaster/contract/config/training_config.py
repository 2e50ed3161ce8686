"""The whole training: `spec.training` of a job, and the config that every rank reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Self

from pydantic import Field, model_validator

from trainmaster.contract.config.batch_config import BatchConfig
from trainmaster.contract.config.checkpoint_config import CheckpointConfig
from trainmaster.contract.config.communication_config import CommunicationConfig, OuterConfig
from trainmaster.contract.config.config_model import STEPS, Device, Grown, Precision, Recompute
from trainmaster.contract.config.divergence_config import DivergenceConfig
from trainmaster.contract.config.evaluation_config import EvaluationConfig
from trainmaster.contract.config.loggers_config import LoggersConfig
from trainmaster.contract.config.micro_batches import share_of_each_rank
from trainmaster.contract.config.model_and_data_config import DataConfig, ModelConfig
from trainmaster.contract.config.optimizer_config import OptimizerConfig
from trainmaster.contract.config.parallelism_config import ParallelismConfig
from trainmaster.contract.config.profile_config import ProfileConfig
from trainmaster.contract.config.refused_combinations import RULES, best_refusal


class TrainingSpec(Grown):
    """The fields of `spec.training` of a job: what Trainmaster's own trainer computes."""

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
        description="When a training step is considered to have diverged, although no rank has failed. A step whose "
        "loss is not finite has always diverged.",
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
        """Return the rules that concern several fields.

        Each rule returns a sentence that describes the first breach it finds, or None. If one field is to be changed,
        the sentence begins with its path and a colon.
        """
        return tuple(partial(rule, self) for rule in RULES)

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        for refusal in self.refusals():
            if words := refusal():
                raise ValueError(words)
        return self

    @property
    def outer(self) -> OuterConfig | None:
        """Return the settings of the exchange between islands, or None if there is only one island."""
        if (self.parallelism.island or 1) == 1:
            return None
        return (self.communication.outer if self.communication is not None else None) or OuterConfig()

    def accumulation(self, world_size: int, divisor: int = 1) -> tuple[int, int]:
        """Return (micro, accumulation) of each rank: global = micro x accumulation x data-parallel ranks.

        `divisor` makes micro smaller, as in `BatchConfig.accumulation`. Raises ValueError, with a sentence for a
        person, if the numbers do not divide.
        """
        return share_of_each_rank(self.parallelism, self.batch, world_size, divisor)

    def at(self, world_size: int) -> Self:
        """Return the config of a world of `world_size` ranks: `batch.scaling` is applied to batch.global and
        optimizer.lr."""
        if self.batch.scaling is None:
            return self
        rate = self.optimizer.lr * self.batch.scaling.factor(world_size)
        optimizer = self.optimizer.model_copy(update={"lr": rate})
        return self.model_copy(update={"batch": self.batch.at(world_size), "optimizer": optimizer})


class TrainingConfig(TrainingSpec):
    """The config that every rank reads: what to compute, and when to save it."""

    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)

    def refusals(self) -> tuple[Callable[[], str | None], ...]:
        """Return the rules of `TrainingSpec` and the rule of `checkpoint.keepBest`."""
        return (*super().refusals(), self.best_refusal)

    def best_refusal(self) -> str | None:
        """Return why the best checkpoint cannot be kept, or None."""
        return best_refusal(self.checkpoint, self.evaluation)
