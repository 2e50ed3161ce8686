"""Refusals of combinations: the sentence for a person, or None. The config asks for them, and so do other modules."""

from __future__ import annotations

from trainmaster.contract.config.checkpoint_config import CheckpointConfig
from trainmaster.contract.config.evaluation_config import EvaluationConfig
from trainmaster.contract.config.parallelism_config import ParallelismConfig


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


def best_refusal(checkpoint: CheckpointConfig, evaluation: EvaluationConfig | None) -> str | None:
    """Why the best checkpoint can't be kept; before the colon stands the field."""
    if not checkpoint.keepBest or evaluation is not None:
        return None
    return "checkpoint.keepBest: the best checkpoint is known by its evaluation loss; training.evaluation is missing"
