"""Hand-written torch: what a person who knows torch.distributed would write for each row."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from benchmarks.trainer_systems.job import Job, loss_of
from benchmarks.turns import Meter


def train(job: Job, meter: Meter) -> None:
    dist.init_process_group("gloo")
    {"ddp": ddp, "fsdp2": fsdp2, "tp": tp, "tp whole": tp_whole, "pp": pp}[job.row](job, meter)
    dist.destroy_process_group()


def ddp(job: Job, meter: Meter) -> None:
    model = DistributedDataParallel(job.model(), gradient_as_bucket_view=True, static_graph=True)
    _loop(job, meter, model)


def fsdp2(job: Job, meter: Meter) -> None:
    model, mesh = job.model(), init_device_mesh("cpu", (job.world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    _loop(job, meter, model)


def _loop(
    job: Job,
    meter: Meter,
    model: nn.Module,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    clip: Callable[[], Any] | None = None,
) -> None:
    """`around`: of the loss and of the backward pass. `clip`: where torch's doesn't do."""
    clip = clip or (lambda: nn.utils.clip_grad_norm_(model.parameters(), job.clip))
    optimizer = job.optimizer(model.parameters())
    for step, tokens, targets in job.batches():
        with around():
            loss = loss_of(model(tokens), targets)
            loss.backward()
        clip()
        optimizer.step()
        optimizer.zero_grad()
        meter.step(step, loss.item)


def tp(job: Job, meter: Meter) -> None:
    """With slices of the sequence between matrices, and a loss of split logits, as ours."""
    _loop(job, meter, _split(job.model(), init_device_mesh("cpu", (job.world,))), loss_parallel)


def tp_whole(job: Job, meter: Meter) -> None:
    """Only matrices are split: what is whole has the same gradients on all ranks."""
    model, mesh = job.model(), init_device_mesh("cpu", (job.world,))
    block = {
        "attention.heads": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }
    for each in model.blocks:
        parallelize_module(each, mesh, block)
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends)
    split = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]

    def clip() -> None:
        parts, rest = [p.grad.to_local() for p in split], [p.grad for p in whole]
        norm = nn.utils.get_total_norm(parts) ** 2
        dist.all_reduce(norm)
        norm += nn.utils.get_total_norm(rest) ** 2
        torch._foreach_mul_([*parts, *rest], (job.clip / (norm.sqrt() + 1e-6)).clamp(max=1.0))

    _loop(job, meter, model, loss_parallel, clip)


def _split(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    sliced = Shard(1)
    attention: dict[str, Any] = {"attention.heads": ColwiseParallel()}
    mlp: dict[str, Any] = {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel(output_layouts=sliced)}
    block = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(sliced, None), desired_input_layouts=(Replicate(), None)),
        **attention,
        "attention.out": RowwiseParallel(output_layouts=sliced),
        "mlp_norm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(sliced,), desired_input_layouts=(Replicate(),)),
        **mlp,
    }
    for each in model.blocks:
        parallelize_module(each, mesh, block)
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=sliced),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=sliced, output_layouts=Shard(-1), use_local_output=False),
    }
    return parallelize_module(model, mesh, ends)


class Half(nn.Module):  # type: ignore[misc]
    """The first or the second half of a model's blocks, with what comes before or after them."""

    def __init__(self, model: nn.Module, first: bool, time: int) -> None:
        super().__init__()
        half = len(model.blocks) // 2
        self.blocks = model.blocks[:half] if first else model.blocks[half:]
        self.ends = nn.ModuleList([model.embedding] if first else [model.norm, model.head])
        self.first, self.positions = first, torch.arange(time)
        self._shared = model.shared

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self.ends[0](x)
        shared = self._shared(self.positions, x)
        for block in self.blocks:
            x = block(x, *shared)
        return x if self.first else self.ends[1](self.ends[0](x))


def pp(job: Job, meter: Meter) -> None:
    is_first = job.rank == 0
    half = Half(job.model(), is_first, job.config.model.options["context"])
    stage = PipelineStage(half, job.rank, job.world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, job.micro_batches, loss_fn=loss_of)
    optimizer = job.optimizer(half.parameters())
    for step, tokens, targets in job.batches():
        losses: list[Tensor] = []
        if is_first:
            schedule.step(tokens)
        else:
            schedule.step(target=targets, losses=losses, return_outputs=False)
        parameters = [p for p in half.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters]) ** 2
        dist.all_reduce(norm)
        nn.utils.clip_grads_with_norm_(parameters, job.clip, norm.sqrt())
        optimizer.step()
        optimizer.zero_grad()
        meter.step(step, lambda losses=losses: torch.stack(losses).mean().item() if losses else math.nan)
