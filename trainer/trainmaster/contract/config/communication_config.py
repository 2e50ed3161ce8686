"""The fields of `training.communication`: what replicas and islands send each other."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trainmaster.contract.config.config_model import STEPS, Grown, Strict

BUCKET_MIB = 25
"""Default size of a gradient bucket in MiB, as in DistributedDataParallel: large enough to use the network well, and
small enough that the first bucket is sent early in the backward pass."""


class CompressionConfig(Strict):
    """How replicas compress the gradients that they send once per step.

    PowerSGD is by Vogels et al. (arXiv 1905.13727), TopK by Aji and Heafield (1704.05021). Both add what they leave out
    in one step to the gradients of the next step (Karimireddy et al., 1901.09847).
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
                raise ValueError(f"{option} is an option of {method}, but method is {self.method}; leave it out")
        if self.warmupSteps and not self.keeps_error:
            raise ValueError(
                f"warmupSteps is an option of PowerSGD and TopK, but method is {self.method}; leave it out"
            )
        return self

    @property
    def rank_or_default(self) -> int:
        """Return the number of columns of PowerSGD's factors, 8 if `rank` is not set."""
        return self.rank or 8

    @property
    def share_or_default(self) -> float:
        """Return the share of elements that TopK sends, 0.1 if `share` is not set."""
        return self.share or 0.1

    @property
    def keeps_error(self) -> bool:
        """Return True if the method adds what it left out to the next step's gradients."""
        return self.method in ("PowerSGD", "TopK")


class OuterConfig(Strict):
    """How islands combine their parameters: the outer optimizer, and how often it runs.

    With lr 1 and momentum 0 it is local SGD (Stich, arXiv 1805.09767): the islands take the mean of their parameters.
    The defaults are those of DiLoCo (Douillard et al., 2311.08105).
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
                f"fragments {self.fragments} is more than every {self.every}, and each needs a step of its own; "
                f"use at most {self.every}"
            )
        return self


class CommunicationConfig(Grown):
    """How replicas (axis dpReplicate) sum their gradients, and what islands (axis island) exchange."""

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
