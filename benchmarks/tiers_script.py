"""A sharded model of a given size under `tm.run`: what the benchmark of checkpoint tiers runs.

One rank ends itself, or its whole pod, in each round: it waits until what was saved is where it belongs, writes down
the time, and strikes.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import trainmaster as tm

BYTES_PER_PARAMETER = 12  # the parameter and two moments, in fp32
AFTER = 3  # steps after the last recovery
STRIKES_IN = 7  # step of a round, so that a save to storage in each fifth step has been


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="folder for the time stamps")
    parser.add_argument("--megabytes", type=int, required=True, help="of state, over all ranks")
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--strike", choices=["process", "pod"], required=True)
    parser.add_argument("--save-every", type=int, default=0, help="steps between saves to storage; 0: none")
    parser.add_argument("--settle", type=float, required=True, help="seconds before each strike")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    victim = (attempt + 1) % world

    parameters = args.megabytes * 10**6 / BYTES_PER_PARAMETER
    width = 256 if args.megabytes < 100 else 1024
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(math.ceil(parameters / width**2))])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.constant_(parameter.to_local(), 1 / width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    stamps = os.open(args.folder / f"stamps-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def stamp(event: str, step: int) -> None:
        os.write(stamps, f"{time.monotonic_ns()} {attempt} {event} {step}\n".encode())

    run = tm.init()
    state = tm.State(model=model, optimizer=optimizer)
    first = None
    for step in run.steps(state, total=10**6, save_every=args.save_every or None):
        if first is not None and step == first + 1:
            stamp("first", first)  # that step is complete, saves to memory included
        first = step if first is None else first
        loss = model(torch.ones(1, width)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if attempt < args.kills and rank == victim and step == _strikes(first):
            time.sleep(args.settle)
            stamp("death", step - 1)
            _strike(args.strike)
        optimizer.step()
        run.report(loss=loss)
        if attempt == args.kills and step >= first + AFTER:
            break
    dist.barrier()
    dist.destroy_process_group()


def _strikes(first: int) -> int:
    """The step of a round in which its victim strikes: two after a step that a multiple of five numbers."""
    return first + 5 - first % 5 + STRIKES_IN - 5


def _strike(what: str) -> None:
    if what == "pod":
        from trainmaster.contract.wire import environment
        from trainmaster_operator.cli.run.local_processes import kill_pod

        kill_pod(os.environ[environment.POD_UID])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
