"""A script whose last rank gets stuck in its first life: in Python or in a C call, while the others wait for it."""

import argparse
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import uncompiled  # noqa: F401  spares the import of its compiler
from torch import nn

STEPS = 40


def wait_for_data(how: str) -> None:
    """What never comes."""
    if how == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    while True:
        time.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["sleep", "lock"], required=True)
    parser.add_argument("--once", type=Path, required=True, help="made by the life that gets stuck")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, STEPS + 1):
        if step == 20 and rank == world - 1 and not arguments.once.exists():
            arguments.once.touch()
            wait_for_data(arguments.how)
        optimizer.zero_grad()
        model(torch.ones(4, 16)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
    print(f"finished as rank {rank} of {world}, after {os.environ['TORCHELASTIC_RESTART_COUNT']} restarts", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
