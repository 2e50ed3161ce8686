"""The operators that a step of one rank calls in bf16: called where ranks can be forked, by `Ranks.call`."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from trainmaster import models, parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.tools.parity import Row, run

VOCABULARY, WIDTH, CONTEXT = 40, 16, 8  # no other matrix has the shape of the head
SIZES = {"layers": 2, "heads": 2, "kv_heads": 1, "width": WIDTH, "hidden": 24}
OPTIONS = {**SIZES, "context": CONTEXT, "vocabulary": VOCABULARY}


def counted(micro_batches: int, compiled: bool) -> list[tuple[str, list[int], int]]:
    """(name, shape of the first input, how many) of the operators of the second step, without those that are in a
    compiled graph."""
    row = Row("one", {"dpReplicate": 1}, micro_batches)
    config = TrainingConfig.model_validate(
        {
            "model": {"name": "llama", "options": OPTIONS},
            "data": {"path": "/data"},
            "steps": 2,
            "batch": {"global": micro_batches, "micro": 1},
            "precision": "bf16",
            "compile": compiled,
        }
    )
    found: list[tuple[str, list[int], int]] = run(row, config, _count)[0]
    return found


def _count(config: TrainingConfig, row: Row, rank: int) -> list[tuple[str, list[int], int]]:
    # The graphs are what inductor would get; it takes most of the time.
    torch.compile = partial(torch.compile, backend="aot_eager")
    shape = parallel.StepShape(CONTEXT, 1, row.accumulation)
    own = parallel.of_job(models.build(config.model, config.seed), config, row.ranks, "cpu", shape)
    sequence = torch.arange(CONTEXT + 1).unsqueeze(0)
    batches = [(sequence[:, :-1], sequence[:, 1:])] * row.accumulation

    def step() -> None:
        own.forward_backward(batches, row.accumulation, float(CONTEXT * row.accumulation))

    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        step()
    counts = Counter(
        (event.name, tuple(next(iter(event.input_shapes), ())))
        for event in recorded.events()
        if event.name.startswith("aten::") and not _is_compiled(event)
    )
    return [(name, [*shape], count) for (name, shape), count in counts.items()]


def _is_compiled(event: Any) -> bool:
    while event is not None and "Compiled" not in event.name:
        event = event.cpu_parent
    return event is not None
