"""A plain DDP script for torchrun, on the device of its local rank: it knows nothing of Trainmaster."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

PACE_S = 0.025


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    given = parser.parse_args()

    on_device = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_device else torch.device("cpu")
    if on_device:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_device else "gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64)).to(device)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(replica.parameters(), lr=1e-3)
    given.folder.mkdir(parents=True, exist_ok=True)
    checkpoint, first = given.folder / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        replica.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        print(f"resumes behind step {first}", flush=True)
    for step in range(first + 1, given.steps + 1):
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(step)).to(device)
        loss = (replica(x) - x.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % given.every == 0:
            state = {"model": replica.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").rename(checkpoint)
        time.sleep(PACE_S)
    print(f"step {given.steps}: loss {loss.item():.6f} on {device}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
