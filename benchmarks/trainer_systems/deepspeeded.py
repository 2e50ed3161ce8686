"""DeepSpeed: ZeRO stage 0 for replicas and 3 for shards, AutoTP told how to split our blocks, and its pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import PipelineModule
from torch import Tensor, nn

from benchmarks.trainer_systems.job import Job, loss_of
from benchmarks.turns import Meter

STAGES = {"ddp": 0, "fsdp2": 3, "tp whole": 0}
SPLITS = {"column": ["heads", "up"], "row": ["out", "down"]}


def train(job: Job, meter: Meter) -> None:
    deepspeed.init_distributed("gloo", verbose=False)
    if job.row == "pp":
        pipeline(job, meter)
    else:
        zero(job, meter, STAGES[job.row])
    dist.destroy_process_group()


def compile_extension() -> None:
    """For collectives in shared memory. Two ranks that both find it missing would wait for each other's lock."""
    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is not None and builder.is_compatible():
        builder.load()


def splits(degree: int) -> dict[str, Any]:
    """For AutoTP, whose own patterns know models of the transformers package."""
    specs = [
        {"patterns": [rf".*\.{name}\.weight$" for name in names], "partition_type": kind}
        for kind, names in SPLITS.items()
    ]
    return {"autotp_size": degree, "partition_config": {"use_default_specs": False, "layer_specs": specs}}


def options(job: Job, stage: int, micro_batches: int = 1) -> dict[str, Any]:
    return {
        "train_batch_size": job.config.batch.global_,
        "train_micro_batch_size_per_gpu": job.share // micro_batches,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": job.clip,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }


def zero(job: Job, meter: Meter, stage: int) -> None:
    model = job.model()
    given = options(job, stage)
    if job.row == "tp whole":
        given["tensor_parallel"] = splits(job.world)
        del given["train_batch_size"]  # it is checked against all ranks, though those of a tensor group share a batch
    engine, *_ = deepspeed.initialize(model=model, optimizer=job.optimizer(model.parameters()), config=given)
    for step, tokens, targets in job.batches():
        loss = loss_of(engine(tokens), targets)
        engine.backward(loss)
        engine.step()
        meter.step(step, loss.item)


class Embed(nn.Module):  # type: ignore[misc]
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.embedding = model.embedding

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)


class Block(nn.Module):  # type: ignore[misc]
    """Makes the rotation itself: only the stream travels between layers of DeepSpeed's pipeline."""

    def __init__(self, model: nn.Module, index: int, time: int) -> None:
        super().__init__()
        self.block, self._shared, self._positions = model.blocks[index], model.shared, torch.arange(time)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x, *self._shared(self._positions, x))


class Unembed(nn.Module):  # type: ignore[misc]
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.norm, self.head = model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


def pipeline(job: Job, meter: Meter) -> None:
    model, time = job.model(), job.config.model.options["context"]
    layers = [Embed(model), *(Block(model, index, time) for index in range(len(model.blocks))), Unembed(model)]
    module = PipelineModule(layers, num_stages=job.world, loss_fn=loss_of, partition_method="type:Block")
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=job.optimizer(module.parameters()), config=options(job, 0, job.micro_batches)
    )
    given = job.batches()
    for step, tokens, targets in given:
        parts: Iterator[Any] = iter(
            list(zip(tokens.chunk(job.micro_batches), targets.chunk(job.micro_batches), strict=True))
        )
        loss = engine.train_batch(parts)
        meter.step(step, lambda loss=loss: float(loss) if loss is not None else math.nan)


if __name__ == "__main__":
    compile_extension()
