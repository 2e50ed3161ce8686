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
import math
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trainmaster import data, models, parallel
from trainmaster.checkpoint.save import local_pieces
from trainmaster.contract.config import AXES, ParallelismConfig, TrainingConfig
from trainmaster.models.layers import AuxiliaryLoss

STEPS = 10
GLOBAL_BATCH = 24
CONTEXT = 16
LOSS_TOLERANCE = 1e-6  # of fp32, relative
# Relative to a parameter's update, which is smaller than the parameter: rounding a 4.0 that moved by 0.1 is 5e-6.
UPDATE_TOLERANCE = 5e-5
PR_SET_PDEATHSIG = 1  # linux/prctl.h
TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class Row:
    """One way to train. `covers`: the code path that no other row has."""

    name: str
    parallelism: Mapping[str, Any] = field(default_factory=dict, hash=False)
    accumulation: int = 1
    model: str = "gpt"
    covers: str = ""

    @property
    def config(self) -> ParallelismConfig:
        return ParallelismConfig.model_validate(dict(self.parallelism))

    @property
    def ranks(self) -> int:
        return math.prod(self.parallelism.get(axis, 1) for axis in AXES)

    def __str__(self) -> str:
        axes = " ".join(f"{a}={self.parallelism[a]}" for a in (*AXES, "ep") if a in self.parallelism)
        return f"{self.name} {self.model} {axes} accumulation={self.accumulation}"


Part = tuple[str, list[int], list[int], Any]
"""(name, offset, shape of the whole, block) of a parameter, in elements."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind: its losses, and its parameters before the first and after the last step.

    The parameters of a rank are a list of parts, those of all ranks whole arrays by name.
    """

    losses: list[float]
    before: Any
    after: Any


@dataclass(frozen=True)
class Comparison:
    row: str  # str(Row)
    ranks: int
    loss: float  # the largest relative difference of a step's loss
    update: float  # the largest difference of a parameter, relative to the largest update of that parameter
    passed: bool


def _rows() -> Iterator[Row]:
    for n in (2, 3, 4):
        for accumulation in (1, 2):
            yield Row("P1-replicate", {"dp_replicate": n}, accumulation)
    for n in (2, 4):
        for accumulation in (1, 2):
            yield Row("P2-fsdp2", {"dp_shard": n}, accumulation)
    for accumulation in (1, 2):
        yield Row("P2-hsdp", {"dp_replicate": 2, "dp_shard": 2}, accumulation)
    for stage in (1, 2):
        yield Row(f"P2-zero-{stage}", {"dp_shard": 2, "sharding": {"stage": stage}}, 2)
    yield Row("P2-zero-1-hsdp", {"dp_replicate": 2, "dp_shard": 2, "sharding": {"stage": 1}}, 2)
    yield Row("P2-offload", {"dp_shard": 2, "sharding": {"offload": True}}, 2)
    yield Row("P2-fsdp2", {"dp_shard": 2}, 1, "llama")
    for model in ("gpt", "llama"):
        for n in (2, 4):
            yield Row("P4-tensor", {"tp": n}, 1, model)
        for sequence in (False, True):
            for vocabulary in (False, True):
                options = {"sequence": sequence, "vocabulary": vocabulary}
                name = f"P4-tensor{'-sequence' if sequence else ''}{'-vocabulary' if vocabulary else ''}"
                yield Row(name, {"tp": 2, "tensor": options}, 2, model)
    for schedule in ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBV", "DualPipeV"):
        for n in (2, 4):
            if n == 2 or schedule in ("GPipe", "1F1B"):
                yield Row(f"P5-{schedule}", {"pp": n, "pipeline": {"schedule": schedule}}, 4)
    yield Row("P5-1F1B", {"pp": 2}, 4, "llama")
    for method in ("AllGather", "Ulysses"):
        for balance in ("HeadTail", "None"):
            yield Row(f"P6-{method}-{balance}", {"cp": 2, "context": {"method": method, "balance": balance}}, 1)
        yield Row(f"P6-{method}", {"cp": 2, "context": {"method": method}}, 2, "llama")
        yield Row(f"P6-{method}", {"cp": 4, "context": {"method": method}}, 1)
    yield Row("P7-dense", {"dp_shard": 2}, 2, "moe")
    yield Row("P7-dense-replicate", {"dp_replicate": 2}, 1, "moe")
    yield Row("P7-dense-tensor", {"tp": 2}, 1, "moe")
    yield Row("P7-dense-tensor-plain", {"tp": 2, "tensor": {"sequence": False}}, 1, "moe")
    yield Row("P7-dense-context", {"cp": 2}, 1, "moe")
    yield Row("P7-dense-pipeline", {"pp": 2}, 4, "moe")
    yield Row("P7-expert", {"dp_shard": 2, "ep": 2}, 2, "moe")
    yield Row("P7-expert", {"dp_shard": 4, "ep": 4}, 1, "moe")
    yield Row("P7-expert-shard", {"dp_shard": 4, "ep": 2}, 1, "moe")
    yield Row("P7-expert-replicate", {"dp_replicate": 2, "dp_shard": 2, "ep": 2}, 1, "moe")
    yield Row("P7-expert-context", {"cp": 2, "ep": 2}, 1, "moe")
    yield Row("P7-expert-shard-context", {"dp_shard": 2, "cp": 2, "ep": 4}, 1, "moe")
    yield Row("P7-expert-tensor", {"dp_shard": 2, "tp": 2, "ep": 2}, 1, "moe")
    yield Row("P7-expert-pipeline", {"pp": 2, "dp_shard": 2, "ep": 2}, 4, "moe")
    yield Row("P8-replicate-tensor", {"dp_replicate": 2, "tp": 2}, 2)
    yield Row("P8-shard-tensor", {"dp_shard": 2, "tp": 2}, 2)
    yield Row("P8-shard-tensor", {"dp_shard": 2, "tp": 2}, 1, "llama")
    yield Row("P8-replicate-context", {"dp_replicate": 2, "cp": 2}, 1)
    yield Row("P8-shard-context", {"dp_shard": 2, "cp": 2}, 1)
    yield Row("P8-context-tensor", {"cp": 2, "tp": 2}, 1)
    yield Row("P8-context-tensor-ulysses", {"cp": 2, "tp": 2, "context": {"method": "Ulysses"}}, 1)
    for schedule in ("1F1B", "Interleaved1F1B", "ZBV"):
        pipeline = {"schedule": schedule}
        yield Row(f"P8-{schedule}-replicate", {"pp": 2, "dp_replicate": 2, "pipeline": pipeline}, 4)
        yield Row(f"P8-{schedule}-shard", {"pp": 2, "dp_shard": 2, "pipeline": pipeline}, 4)
        yield Row(f"P8-{schedule}-tensor", {"pp": 2, "tp": 2, "pipeline": pipeline}, 4)
        yield Row(f"P8-{schedule}-context", {"pp": 2, "cp": 2, "pipeline": pipeline}, 4)
    yield Row("P8-3D", {"pp": 2, "dp_shard": 2, "tp": 2}, 4)
    yield Row("P8-3D-ZBV", {"pp": 2, "dp_shard": 2, "tp": 2, "pipeline": {"schedule": "ZBV"}}, 4)
    yield Row("P8-hsdp-tensor", {"dp_replicate": 2, "dp_shard": 2, "tp": 2}, 1)
    yield Row("P8-shard-context-tensor", {"dp_shard": 2, "cp": 2, "tp": 2}, 1)
    yield Row("P8-4D", {"pp": 2, "cp": 2, "tp": 2}, 4)


ROWS = list(_rows())


def reference(row: Row) -> Row:
    return Row("one-process", model=row.model)


def train(config: TrainingConfig, row: Row, rank: int) -> Outcome:
    """One rank's run. Without an axis the model is plain, and no process group is touched."""
    source = data.build(config)
    model = models.build(config.model, config.seed)
    degrees = row.config.resolve(row.ranks)
    share = config.batch.global_ // (degrees["dp_replicate"] * degrees["dp_shard"])
    micro = share // row.accumulation
    spread = None
    if row.parallelism:
        shape = parallel.StepShape(CONTEXT, micro, row.accumulation)
        spread = parallel.parallelize(model, degrees, config.parallelism, config.precision, "cpu", shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = parts(model)
    losses = []
    for step in range(config.steps):
        consumed = step * config.batch.global_
        divisor = source.valid_tokens(consumed, config.batch.global_)
        first = (spread.mesh.data_rank if spread else 0) * share
        batches = [
            source.batch(consumed, range(first + i * micro, first + (i + 1) * micro)) for i in range(row.accumulation)
        ]
        if spread is not None:
            own = [(spread.own(batch.inputs), spread.own(batch.targets)) for batch in batches]
            total = spread.forward_backward(own, row.accumulation, divisor)
        else:
            (batch,) = batches
            for module in model.modules():
                if isinstance(module, AuxiliaryLoss):
                    module.scale = 1 / divisor
            loss = parallel.cross_entropy(model(batch.inputs), batch.targets) / divisor
            loss.backward()
            total = loss.detach()
        totals = torch.stack([total, parallel.gradient_norm_squared(model)])
        if spread is not None:
            dist.all_reduce(totals)
        # Clipped on some steps and not on others, so that a wrong norm shows too.
        parallel.scale_gradients_(model, (1.5 / totals[1].sqrt()).clamp(max=1.0))
        with parallel.elementwise():
            optimizer.step()
        optimizer.zero_grad()
        losses.append(totals[0].item())
    return Outcome(losses, before, parts(model))


def parts(model: torch.nn.Module) -> list[Part]:
    """What this rank holds of each parameter, copied."""
    return [
        (piece.name, piece.offset, piece.whole, piece.data.detach().numpy().copy())
        for name, parameter in model.named_parameters()
        for piece in local_pieces(name, parameter)
    ]


def whole(parts: Iterable[Part]) -> dict[str, Any]:
    """Whole parameters by name. What several ranks hold must be the same on all of them."""
    found: dict[str, Any] = {}
    for name, offset, shape, block in parts:
        if name not in found:
            found[name] = np.full(shape, np.nan, block.dtype)
        place = found[name][tuple(slice(o, o + n) for o, n in zip(offset, block.shape, strict=True))]
        differ = ~np.isnan(place) & (place != block)
        place[...] = np.where(differ, np.nan, block)  # which passes no comparison
    return found


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Of all ranks. Losses that aren't the same on all of them are none."""
    losses = [each[0] if len({*each}) == 1 else math.nan for each in zip(*(o.losses for o in outcomes), strict=True)]
    before = whole(part for outcome in outcomes for part in outcome.before)
    after = whole(part for outcome in outcomes for part in outcome.after)
    return Outcome(losses, before, after)


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
        if row.parallelism:
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


MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 8, "heads": 4, "width": 32},
    "llama": {"layers": 8, "heads": 4, "kv_heads": 4, "width": 32},
    "moe": {"layers": 4, "heads": 4, "width": 32, "hidden": 32, "experts": 4},
}


def example(folder: Path, row: Row) -> TrainingConfig:
    """A tiny model on a tiny text that is written into `folder`."""
    letters = np.random.default_rng(7).choice(list(b"abcdefghij \n"), size=150 * CONTEXT + 5)
    (folder / "text.txt").write_bytes(bytes(letters.tolist()))
    return TrainingConfig.model_validate(
        {
            "model": {"name": row.model, "options": {**MODELS[row.model], "context": CONTEXT}},
            "data": {"path": str(folder)},
            "steps": STEPS,
            "batch": {"global": GLOBAL_BATCH},
            "parallelism": dict(row.parallelism),
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
    return Comparison(str(row), row.ranks, loss, update, passed)


def select(patterns: Sequence[str]) -> list[Row]:
    """The rows whose name holds one of the patterns; all without any."""
    return [row for row in ROWS if not patterns or any(fnmatch.fnmatch(str(row), f"*{p}*") for p in patterns)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainmaster.parity", description=__doc__)
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", default=[], help="rows whose name holds this; may be repeated"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table as JSON too")
    options = parser.parse_args(arguments)
    rows = select(options.only)
    if not rows:
        sys.stderr.write(
            f"no row holds {' or '.join(map(repr, options.only))}; rows are: {', '.join(map(str, ROWS))}\n"
        )
        return 2
    table = []
    with tempfile.TemporaryDirectory() as folder:
        references: dict[Row, Outcome] = {}
        sys.stdout.write(
            f"{'row':60} {'loss':>9} {'update':>9}   tolerance {LOSS_TOLERANCE:.0e} {UPDATE_TOLERANCE:.0e}\n"
        )
        for row in rows:
            began = time.monotonic()
            config = example(Path(folder), row)
            expected = reference(row)
            if expected not in references:
                references[expected] = merged(run(expected, example(Path(folder), expected)))
            comparison = compare(row, merged(run(row, config)), references[expected])
            table.append(comparison)
            verdict = "ok" if comparison.passed else "BEYOND TOLERANCE"
            seconds = time.monotonic() - began
            sys.stdout.write(f"{row!s:60} {comparison.loss:9.1e} {comparison.update:9.1e} {seconds:6.1f} {verdict}\n")
            sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps({"rows": [asdict(comparison) for comparison in table]}, indent=1) + "\n")
    return 0 if all(comparison.passed for comparison in table) else 1


if __name__ == "__main__":
    sys.exit(main())
