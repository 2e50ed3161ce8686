"""Combinations of fields that are refused. Each function returns a sentence for a person, or None."""

from __future__ import annotations

from trainmaster.contract.config.checkpoint_config import CheckpointConfig
from trainmaster.contract.config.evaluation_config import EvaluationConfig
from trainmaster.contract.config.parallelism_config import ParallelismConfig


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
