"""Combinations of fields of a training that are refused. Each function returns a sentence for a person, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainmaster.contract.config.checkpoint_config import CheckpointConfig
from trainmaster.contract.config.evaluation_config import EvaluationConfig
from trainmaster.contract.config.parallelism_config import ParallelismConfig

if TYPE_CHECKING:
    from trainmaster.contract.config.training_config import TrainingSpec


def precision_refusal(precision: str, recompute: str) -> str | None:
    """Return why blocks cannot compute in this precision with this recomputation, or None."""
    if precision == "fp8" and recompute == "Reversible":
        return (
            "precision fp8 rounds values in the forward pass, and recompute Reversible has to compute exactly the same "
            "values in the backward pass; use precision bf16, or recompute Full"
        )
    return None


def compile_refusal(parallelism: ParallelismConfig, recompute: str) -> str | None:
    """Return why blocks cannot be compiled with this parallelism and this recomputation, or None."""
    for axis in ("tp", "cp", "ep"):
        degree = getattr(parallelism, axis) or 1
        if degree > 1:
            return (
                f"compile works on blocks that do not communicate, and with parallelism.{axis} {degree} they exchange "
                f"data with other ranks; use {axis} 1, or leave compile out"
            )
    schedule = parallelism.pipeline.schedule if parallelism.pipeline is not None else ""
    if schedule in ("InterleavedZeroBubble", "ZBV", "DualPipeV"):
        return (
            f"compile keeps a block's backward pass in one piece, and parallelism.pipeline.schedule {schedule} "
            f"cuts it in two; use 1F1B, Interleaved1F1B or GPipe, or leave compile out"
        )
    if recompute == "Reversible":
        return "compile cannot trace blocks whose inputs recompute Reversible computes again; leave one of them out"
    return None


def best_refusal(checkpoint: CheckpointConfig, evaluation: EvaluationConfig | None) -> str | None:
    """Return why the best checkpoint cannot be kept, or None. The text before the colon is the field's path."""
    if not checkpoint.keepBest or evaluation is not None:
        return None
    return "checkpoint.keepBest: the best checkpoint is known by its evaluation loss; training.evaluation is missing"


def warm_up_refusal(training: TrainingSpec) -> str | None:
    """Return why the learning rate cannot warm up for `optimizer.warmupSteps` steps, or None."""
    if training.optimizer.warmupSteps < training.steps:
        return None
    return (
        f"optimizer.warmupSteps: less than steps ({training.steps}) is expected, not {training.optimizer.warmupSteps}"
    )


def profile_refusal(training: TrainingSpec) -> str | None:
    """Return why the steps of `profile.steps` cannot be recorded, or None."""
    if training.profile is None or training.profile.steps[1] <= training.steps:
        return None
    return f"profile.steps: the last one is {training.profile.steps[1]}, but the run has only {training.steps} steps"


def muon_refusal(training: TrainingSpec) -> str | None:
    """Return why muon cannot work with this parallelism, or None."""
    sharding = training.parallelism.sharding
    if training.optimizer.name == "muon" and sharding is not None and sharding.offload:
        return (
            "optimizer.name muon needs whole matrices on the device, and parallelism.sharding.offload keeps their "
            "shards in host memory; use adamw, or leave offload out"
        )
    return None


def compression_refusal(training: TrainingSpec) -> str | None:
    """Return why gradients cannot be compressed with this parallelism and precision, or None."""
    compression = training.communication.compression if training.communication is not None else None
    if compression is None:
        return None
    where = "communication.compression"
    if training.parallelism.dpReplicate == 1:
        return (
            f"{where} compresses gradients that replicas send, and with parallelism.dpReplicate 1 there are no "
            f"replicas; set it to 2 or more, or leave compression out"
        )
    if training.parallelism.sharding is not None and training.parallelism.sharding.offload:
        return (
            f"{where} works on the device, and parallelism.sharding.offload moves gradients to host memory; leave "
            f"one of them out"
        )
    if compression.keeps_error and training.precision == "fp16":
        return (
            f"{where}.method {compression.method} adds what it doesn't send to the next step, and a step that "
            f"overflows in precision fp16 would spoil it; use precision bf16 or fp32, or method fp16 or bf16"
        )
    return None


def island_refusal(training: TrainingSpec) -> str | None:
    """Return why the rest of the config does not allow islands, or None."""
    communication, sharding = training.communication, training.parallelism.sharding
    if training.outer is None:
        if communication is not None and communication.outer is not None:
            return "communication.outer configures islands, and there are none; set parallelism.island to 2 or more"
        return None
    if communication is not None and communication.compression is not None:
        return (
            "communication.compression compresses gradients, and islands exchange parameters instead; use "
            "communication.outer.send bf16 to halve what they send"
        )
    if training.precision == "fp16":
        return "parallelism.island: fp16 needs one loss scale, and each island would have its own; use bf16 or fp32"
    if sharding is not None and sharding.offload:
        return (
            "parallelism.island: islands exchange parameters on the device, and parallelism.sharding.offload keeps "
            "them in host memory; leave one of them out"
        )
    return None


def noise_refusal(training: TrainingSpec) -> str | None:
    """Return why the gradient noise scale cannot be estimated with this parallelism, or None."""
    sharding = training.parallelism.sharding
    if training.batch.noiseScale is None:
        return None
    if (training.parallelism.pp or 1) > 1:
        return "batch.noiseScale: a pipeline never has the gradients of one micro-batch alone; use pp 1"
    if sharding is not None and sharding.stage < 3:
        return (
            f"batch.noiseScale: with parallelism.sharding.stage {sharding.stage} the gradients can't be read "
            f"before the last micro-batch; use stage 3"
        )
    if sharding is not None and sharding.offload:
        return (
            "batch.noiseScale: with parallelism.sharding.offload the gradients of one micro-batch are still on "
            "their way to host memory when the next one begins; leave one of them out"
        )
    if training.outer is not None:
        return "batch.noiseScale needs one batch that all ranks share, and each island has its own; leave it out"
    return None


def _precision(training: TrainingSpec) -> str | None:
    return precision_refusal(training.precision, training.recompute)


def refused_compile(training: TrainingSpec) -> str | None:
    """Return why `compile` cannot be true with this parallelism and this recomputation, or None."""
    return compile_refusal(training.parallelism, training.recompute) if training.compile else None


RULES: tuple[Callable[[TrainingSpec], str | None], ...] = (
    warm_up_refusal,
    profile_refusal,
    muon_refusal,
    refused_compile,
    compression_refusal,
    island_refusal,
    noise_refusal,
    _precision,
)
"""The rules across several fields of a training, in the order in which they are tried. Each returns a sentence for a
person that says what is wrong, or None."""
