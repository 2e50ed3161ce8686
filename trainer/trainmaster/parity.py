"""The parity table: each parallel strategy against one process that knows of none.

Same initial weights, same samples, SGD with momentum (Adam would hide a wrong scale of the gradients). Compared are
the losses of all steps, and the parameters in the end relative to how far training moved them. The text is so small
that an epoch ends within the run and its last window is short: the divisor differs between steps and ranks.

    python -m trainmaster.parity [--only PATTERN] [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from trainmaster import data, models, parallel
from trainmaster.contract.config import TrainingConfig

STEPS = 10
GLOBAL_BATCH = 24
CONTEXT = 16
LOSS_TOLERANCE = 1e-6  # of fp32, relative
# Relative to a parameter's update, which is smaller than the parameter: rounding a 4.0 that moved by 0.1 is 5e-6.
UPDATE_TOLERANCE = 1e-5
PR_SET_PDEATHSIG = 1  # linux/prctl.h
TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class Row:
    name: str
    mesh: dict[str, int]
    accumulation: int = 1

    @property
    def ranks(self) -> int:
        return self.mesh.get("dp_replicate", 1) * self.mesh.get("dp_shard", 1)

    def __str__(self) -> str:
        return f"{self.name} ranks={self.ranks} accumulation={self.accumulation}"


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind: its losses, and its parameters by name before the first and after the last step."""

    losses: list[float]
    before: dict[str, Any]
    after: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    row: str
    ranks: int
    accumulation: int
    loss: float  # the largest relative difference of a step's loss
    update: float  # the largest difference of a parameter, relative to the largest update of that parameter
    passed: bool


ROWS = [
    Row(name, mesh, accumulation)
    for name, mesh in [
        ("P1-replicate", {"dp_replicate": 2}),
        ("P1-replicate", {"dp_replicate": 3}),
        ("P1-replicate", {"dp_replicate": 4}),
        ("P2-fsdp2", {"dp_shard": 2}),
        ("P2-fsdp2", {"dp_shard": 4}),
        ("P2-hsdp", {"dp_replicate": 2, "dp_shard": 2}),
    ]
    for accumulation in (1, 2)
]
REFERENCE = Row("one-process", {})


def train(config: TrainingConfig, row: Row, rank: int) -> Outcome:
    """One rank's run. Without a mesh the model is plain, and no process group is touched."""
    source = data.build(config)
    model = models.build(config.model, config.seed)
    if row.mesh:
        parallel.parallelize(model, parallel.make_mesh(row.mesh, "cpu"), config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = whole(model)
    share = config.batch.global_ // row.ranks // row.accumulation
    losses = []
    for step in range(config.steps):
        consumed = step * config.batch.global_
        divisor = source.valid_tokens(consumed, config.batch.global_)
        total = torch.zeros(())
        for index in range(row.accumulation):
            parallel.set_gradient_sync(model, last=index == row.accumulation - 1)
            first = (rank * row.accumulation + index) * share
            batch = source.batch(consumed, range(first, first + share))
            logits = model(batch.inputs).flatten(0, 1)
            loss = (
                F.cross_entropy(logits, batch.targets.flatten(), ignore_index=data.IGNORED, reduction="sum") / divisor
            )
            loss.backward()
            total += loss.detach()
        totals = torch.stack([total, parallel.gradient_norm_squared(model)])
        if row.mesh:
            dist.all_reduce(totals)
        # Clipped on some steps and not on others, so that a wrong norm shows too.
        parallel.scale_gradients_(model, (1.5 / totals[1].sqrt()).clamp(max=1.0))
        with parallel.elementwise():
            optimizer.step()
        optimizer.zero_grad()
        losses.append(totals[0].item())
    return Outcome(losses, before, whole(model))


def whole(model: torch.nn.Module) -> dict[str, Any]:
    """All parameters as numpy arrays, gathered from their shards: a collective."""
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().numpy().copy()
        for name, p in model.named_parameters()
    }


def run(row: Row, config: TrainingConfig, work: Callable[[TrainingConfig, Row, int], Any] = train) -> list[Any]:
    """What `work` returns on all ranks, each a process forked from this one, which must not have run torch operations:
    a used pool of OpenMP threads hangs after a fork."""
    context = multiprocessing.get_context("fork")
    # Rank 0 hosts the store on a socket that is bound before the fork: so no port can be taken meanwhile, and this
    # process gets no thread (a fork beside a store's thread can hang).
    listener = socket.create_server(("127.0.0.1", 0), backlog=row.ranks)
    started = []
    for rank in range(row.ranks):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(row, config, rank, work, listener, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    listener.close()
    try:
        return [_outcome(row, rank, pipe) for rank, (_, pipe) in enumerate(started)]
    finally:
        for process, _ in started:
            process.kill()
            process.join()


def _rank(
    row: Row,
    config: TrainingConfig,
    rank: int,
    work: Callable[[TrainingConfig, Row, int], Any],
    listener: socket.socket,
    pipe: Connection,
) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    try:
        if row.mesh:
            port = listener.getsockname()[1]
            hosts = {"is_master": True, "master_listen_fd": listener.detach()} if rank == 0 else {"is_master": False}
            store = dist.TCPStore("127.0.0.1", port, timeout=TIMEOUT, wait_for_workers=False, **hosts)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=row.ranks, timeout=TIMEOUT)
        pipe.send(work(config, row, rank))
    except BaseException:  # noqa: BLE001 a forked rank must never go on into its parent's code
        traceback.print_exc()
        os._exit(1)
    signal.pause()  # until killed: who leaves early cuts its peers off


def _outcome(row: Row, rank: int, pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError(f"{row}: rank {rank} died, see its traceback above") from None


def example(folder: Path) -> TrainingConfig:
    """A tiny model on a tiny text that is written into `folder`."""
    letters = np.random.default_rng(7).choice(list(b"abcdefghij \n"), size=150 * CONTEXT + 5)
    (folder / "text.txt").write_bytes(bytes(letters.tolist()))
    return TrainingConfig.model_validate(
        {
            "model": {"name": "gpt", "options": {"layers": 2, "heads": 2, "width": 32, "context": CONTEXT}},
            "data": {"path": str(folder)},
            "steps": STEPS,
            "batch": {"global": GLOBAL_BATCH},
            "seed": 3,
        }
    )


def compare(row: Row, outcome: Outcome, reference: Outcome) -> Comparison:
    losses, expected = np.array(outcome.losses), np.array(reference.losses)
    loss = float(np.max(np.abs(losses - expected) / np.abs(expected)))
    update = max(
        float(np.max(np.abs(outcome.after[name] - after)) / np.max(np.abs(after - reference.before[name])))
        for name, after in reference.after.items()
    )
    same_start = all(np.array_equal(outcome.before[name], value) for name, value in reference.before.items())
    passed = same_start and loss <= LOSS_TOLERANCE and update <= UPDATE_TOLERANCE  # NaN passes nothing
    return Comparison(row.name, row.ranks, row.accumulation, loss, update, passed)


def select(pattern: str) -> list[Row]:
    return [row for row in ROWS if fnmatch.fnmatch(str(row), f"*{pattern}*")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainmaster.parity", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", default="", help="rows whose name holds this, such as hsdp")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table as JSON too")
    options = parser.parse_args(arguments)
    rows = select(options.only)
    if not rows:
        sys.stderr.write(f"no row holds {options.only!r}; rows are: {', '.join(map(str, ROWS))}\n")
        return 2
    table = []
    with tempfile.TemporaryDirectory() as folder:
        config = example(Path(folder))
        (reference,) = run(REFERENCE, config)
        sys.stdout.write(
            f"{'row':34} {'loss':>9} {'update':>9}   tolerance {LOSS_TOLERANCE:.0e} {UPDATE_TOLERANCE:.0e}\n"
        )
        for row in rows:
            comparison = compare(row, run(row, config)[0], reference)
            table.append(comparison)
            verdict = "ok" if comparison.passed else "BEYOND TOLERANCE"
            sys.stdout.write(f"{row!s:34} {comparison.loss:9.1e} {comparison.update:9.1e}   {verdict}\n")
            sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps([asdict(comparison) for comparison in table], indent=2) + "\n")
    return 0 if all(comparison.passed for comparison in table) else 1


if __name__ == "__main__":
    sys.exit(main())
