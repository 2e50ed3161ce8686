"""A rank of a job of the seeded incidents: it trains a small layer at a steady pace, until what was asked for happens.

It is a loop of one's own (docs/scripts.md). What goes wrong goes wrong in it, as it would in anybody's program.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
import torch.distributed as dist

import trainmaster as tm

WIDTH = 256
BATCH = 16
TOKENS = 8192
"""That a step of all ranks is said to consume."""
DATA_ERROR = 91
"""The exit code of a rank whose data are bad (docs/exit-codes.md)."""
LEAK_BYTES = 32 * 2**20
"""That a leak takes in each step."""
MOST_LEAKS = 25


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--pace", type=float, default=0.5, metavar="S", help="the length of a step")
    add("--steps", type=int, default=5000)
    add("--save-every", type=int, default=20, metavar="STEPS")
    add("--after", type=float, default=0.0, metavar="S", help="what is asked for happens so long after the start")
    add("--does", choices=["nothing", "crashes", "hangs", "slows", "leaks", "diverges", "reads-badly"])
    add("--rank", type=int, default=0, help="the rank that it happens to")
    return parser.parse_args()


class Trouble:
    """What happens to this rank, and since when."""

    def __init__(self, given: argparse.Namespace, rank: int) -> None:
        self._kind = given.does if rank == given.rank else "nothing"
        self._at = time.monotonic() + given.after
        self._pace_s: float = given.pace
        self._kept: list[bytearray] = []

    def _has(self, kind: str) -> bool:
        return self._kind == kind and time.monotonic() >= self._at

    def before_step(self, step: int) -> None:
        if self._has("crashes"):
            raise KeyError(f"token_{step}")
        if self._has("reads-badly"):
            sys.stderr.write(json.dumps({"file": "part-00017.parquet", "error": "not a parquet file"}) + "\n")
            raise SystemExit(DATA_ERROR)
        if self._has("leaks"):
            self._leak()
        while self._has("hangs"):
            time.sleep(3600)
        time.sleep(self._pace_s * (2.5 if self._has("slows") else 1))

    def weight(self) -> float:
        """What the loss is multiplied by."""
        return float("nan") if self._has("diverges") else 1.0

    def _leak(self) -> None:
        """Memory that is never given back, and at some point isn't had. The machine has others too, so that the limit
        is told here and not found by the kernel."""
        if len(self._kept) >= MOST_LEAKS:
            raise MemoryError(f"can't allocate memory: {LEAK_BYTES} bytes")
        self._kept.append(bytearray(b"\1") * LEAK_BYTES)


def main() -> None:
    given = arguments()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    target = torch.nn.Linear(WIDTH, WIDTH)
    model = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    trouble = Trouble(given, rank)
    draws = torch.Generator().manual_seed(rank)
    run = tm.init()
    state = tm.State(model=model, optimizer=optimizer)
    for step in run.steps(state, total=given.steps, save_every=given.save_every):
        trouble.before_step(step)
        inputs = torch.randn(BATCH, WIDTH, generator=draws)
        loss = trouble.weight() * (model(inputs) - target(inputs)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        run.report(loss=loss, tokens=TOKENS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
