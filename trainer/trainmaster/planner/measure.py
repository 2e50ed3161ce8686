"""Some steps of layouts by real processes on this machine's CPU: `python -m trainmaster.planner.measure`.

In a process of its own, since ranks are forked, and who has run a backward pass can't be forked from. On stdin: a list
of {"ranks", "training"}. On stdout: a line for each, the seconds of a step.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from trainmaster import models, parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.optimizer import ShardOptimizer
from trainmaster.parity import Row, run
from trainmaster.planner.layouts import Layout

STEPS = 5  # after a first one, which allocates


def measured(layouts: Sequence[Layout]) -> Iterator[float]:
    """Seconds of a step of each, one after the other. Raises RuntimeError when ranks died, of memory for example."""
    jobs = [{"ranks": layout.ranks, "training": layout.config.model_dump(mode="json")} for layout in layouts]
    with subprocess.Popen(
        [sys.executable, "-m", "trainmaster.planner.measure"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(jobs))
        process.stdin.close()
        for _ in layouts:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the ranks died; their last words are above")
            yield float(line)


def steps(config: TrainingConfig, row: Row, rank: int) -> float:
    """Seconds of a step of this rank, the median. Tokens are random: the time doesn't depend on them."""
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


def main() -> None:
    for job in json.load(sys.stdin):
        config = TrainingConfig.model_validate(job["training"])
        layout = Layout(config, job["ranks"])
        row = Row(layout.name, layout.fields, layout.micro_batches[1], config.model.name)
        sys.stdout.write(f"{max(run(row, config, work=steps))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
