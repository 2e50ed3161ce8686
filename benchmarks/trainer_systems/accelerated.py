"""Hugging Face Accelerate."""

from __future__ import annotations

from accelerate import Accelerator, DistributedDataParallelKwargs

from benchmarks.trainer_systems.job import Job, loss_of
from benchmarks.turns import Meter


def train(job: Job, meter: Meter) -> None:
    assert job.row == "ddp", job.row
    options = DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[options])
    model = job.model()
    model, optimizer = accelerator.prepare(model, job.optimizer(model.parameters()))
    for step, tokens, targets in job.batches():
        loss = loss_of(model(tokens), targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()
        optimizer.zero_grad()
        meter.step(step, loss.item)
    accelerator.end_training()
