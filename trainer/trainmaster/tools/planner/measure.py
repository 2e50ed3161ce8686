"""Some steps of layouts, run by real processes on this machine's CPU.

Their ranks are forked, and a process that has run an operation of torch cannot be forked. The planner runs some for its
estimates, so the process that measures is forked before that.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from trainmaster import models, parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.optim.optimizer import ShardOptimizer
from trainmaster.tools.parity import Row, run
from trainmaster.tools.planner.layouts import Layout

STEPS = 5  # after a first one, which allocates


class Measurer:
    """The process that measures, as the planner sees it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def seconds(self, layouts: Sequence[Layout]) -> Iterator[float]:
        """Yield the seconds of a step of each layout, one after the other.

        Raises RuntimeError if ranks died, for example because memory was exhausted.
        """
        for layout in layouts:
            try:
                self._pipe.send((layout.config, layout.ranks))
                took = self._pipe.recv()
            except (EOFError, BrokenPipeError):
                raise RuntimeError("the ranks died; their last words are above") from None
            yield took


@contextmanager
def measurer() -> Iterator[Measurer]:
    """Fork a process that measures. Use it before this process runs an operation of torch."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, ours))
    process.start()
    theirs.close()
    try:
        yield Measurer(ours)
    finally:
        ours.close()
        process.join()


def _serve(pipe: Connection, planners: Connection) -> None:
    planners.close()  # so that the planner's end is the end of this process, too
    while True:
        try:
            config, ranks = pipe.recv()
        except EOFError:
            return
        layout = Layout(config, ranks)
        row = Row(layout.name, layout.fields, layout.micro_batches[1], config.model.name)
        pipe.send(max(run(row, config, work=steps)))


def steps(config: TrainingConfig, row: Row, rank: int) -> float:
    """Return the median seconds of a step of this rank. Tokens are random, because the time does not depend on them."""
    layout = Layout(config, row.ranks)
    micro, count = layout.micro_batches
    facts = models.facts(config.model)
    context = facts.context
    shape = parallel.StepShape(context, micro, count)
    spread = parallel.of_job(models.build(config.model, config.seed), config, row.ranks, "cpu", shape)
    optimizer = ShardOptimizer(spread.model, config.optimizer)
    tokens = torch.randint(0, facts.vocabulary, (micro, context + 1))
    batches = [(spread.own(tokens[:, :-1]), spread.own(tokens[:, 1:]))] * count
    took = []
    for _ in range(1 + STEPS):
        dist.barrier()
        began = time.perf_counter()
        spread.forward_backward(batches, count, float(config.batch.global_ * context))
        if optimizer.joins:
            optimizer.orthogonalize(None)
        optimizer.step(config.optimizer.lr)
        spread.completed()
        dist.barrier()
        took.append(time.perf_counter() - began)
    return statistics.median(took[1:])
