"""The script of the goodput benchmark: plain data-parallel training that knows nothing of whoever starts it.

It has a checkpoint file of its own, written by rank 0 every K steps, and a time limit for each collective, so that a
peer that is silent ends it. A pause in each step stands for the work of an accelerator: the cores stay free for
restarts, as they would be. Gradients go through one all-reduce, so each step has the same bits whenever it is run.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[1]))  # it is run by its path

from benchmarks.goodput_record import StepLog


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True, help="steps between saves")
    parser.add_argument("--width", type=int, default=1024, help="two square matrices of this size are the model")
    parser.add_argument("--step-seconds", type=float, default=0.04, help="the pause in each step")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds in which a peer must answer")
    given = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    log = StepLog(given.folder, rank)
    group = dist.new_group(timeout=timedelta(seconds=given.timeout))  # joining may take longer than a step

    torch.manual_seed(0)
    layers = [torch.nn.Linear(given.width, given.width, bias=False) for _ in range(2)]
    model = torch.nn.Sequential(layers[0], torch.nn.GELU(), layers[1])
    parameters = [*model.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    checkpoint = given.folder / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    dist.barrier(group)  # all have read it before anybody writes the next one

    while step < given.steps:
        generator = torch.Generator().manual_seed(step * world + rank)
        x = torch.randn(16, given.width, generator=generator)
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(given.step_seconds)
        flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None] + [loss.detach().reshape(1)])
        dist.all_reduce(flat, group=group)
        flat /= world
        parts = flat[:-1].split([p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
        step += 1
        log.completed(step, flat[-1].item())
        if step % given.every == 0 and rank == 0:
            began = time.monotonic()
            partial = checkpoint.with_suffix(".new")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial)
            partial.replace(checkpoint)
            log.saved(step, time.monotonic() - began)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parameters))
    log.ended(digest.hexdigest()[:16])
    dist.barrier(group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
