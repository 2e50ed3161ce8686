"""A plain torchrun-style DDP script with its own checkpoint file: what both systems of the recovery benchmark run.

It knows nothing of Trainmaster. A rank kills itself once per round, some seconds after the round's first step, so
that the time of death is known exactly: it is written down right before the signal. Each rank also writes down how far
it was when, and how long it has imported by then; torch imports much of itself when an optimizer is first made.
"""

from __future__ import annotations

import time

BEGAN_NS = time.monotonic_ns()

import argparse  # noqa: E402
import builtins  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402


class ImportClock:
    """Counts the time that this process spends in imports, wherever they stand."""

    def __init__(self) -> None:
        self.spent_ns, self._depth, self._import = 0, 0, builtins.__import__

    def start(self) -> None:
        builtins.__import__ = self._timed

    def _timed(self, *arguments: Any, **options: Any) -> Any:
        began, self._depth = time.monotonic_ns(), self._depth + 1
        try:
            return self._import(*arguments, **options)
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.spent_ns += time.monotonic_ns() - began


clock = ImportClock()
if __name__ == "__main__":
    clock.start()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="folder for the time stamps")
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--settle", type=float, nargs=2, required=True, help="seconds before the first and later kills")
    parser.add_argument("--after", type=int, default=20, help="steps after the last recovery")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    joined_ns, joined_imports_ns = time.monotonic_ns(), clock.spent_ns
    rank, world = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    victim = (attempt + 1) % world

    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint = args.folder / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]

    stamps = os.open(args.folder / f"stamps-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def stamp(event: str, at_ns: int = 0, imports_ns: int | None = None) -> None:
        imports = clock.spent_ns if imports_ns is None else imports_ns
        os.write(stamps, f"{at_ns or time.monotonic_ns()} {attempt} {event} {step} {imports}\n".encode())

    stamp("begin", BEGAN_NS, 0)
    stamp("joined", joined_ns, joined_imports_ns)
    stamp("built")
    first: float | None = None
    done = 0
    while attempt < args.kills or done < args.after:
        generator = torch.Generator().manual_seed(step * world + rank)
        x = torch.randn(16, 64, generator=generator)
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        settle = args.settle[0 if attempt == 0 else 1]
        # Asked right before the optimizer: the peers stand inside or right behind their own backward.
        if attempt < args.kills and rank == victim and first is not None and time.monotonic() - first > settle:
            stamp("death")
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        step += 1
        done += 1
        if first is None:
            first = time.monotonic()
            stamp("first")
        if step % 10 == 0 and rank == 0:
            partial = checkpoint.with_suffix(".tmp")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial)
            partial.rename(checkpoint)
        time.sleep(0.02)  # a step of a useful size, without loading the two cores
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
