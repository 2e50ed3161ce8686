"""The fields of `training.optimizer`: the optimizer and the schedule of its learning rate."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from trainmaster.contract.config.config_model import STEPS, Decay, Strict


class OptimizerConfig(Strict):
    """The optimizer, its learning rate and the clipping of gradients.

    Muon is by Jordan et al. (2024), with the scale of Liu et al. (arXiv 2502.16982), so that lr and weightDecay have
    the same values as for adamw. Embeddings, the output layer and vectors are trained by AdamW with name muon, too.
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
        description="Weight decay, multiplied by the learning rate. adamw and muon: it is decoupled from the gradient. "
        "sgd: it is a part of the gradient, so with momentum 0.9 weights decay ten times as fast. Vectors such as "
        "biases do not decay. Default: 0.1.",
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
        """Return `momentum`, or the default of the optimizer if it is not set: 0.95 for muon, else 0.9."""
        if self.momentum is not None:
            return self.momentum
        return 0.95 if self.name == "muon" else 0.9

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields with a number for `momentum`: trainers that knew a default of 0.9 would refuse null."""
        return {**serialize(self), "momentum": self.momentum_or_default}
