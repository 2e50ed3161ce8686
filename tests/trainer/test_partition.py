"""Blocks of a pipeline's stages."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import trainmaster as tm
from tests.trainer.process_groups import process_group
from tests.trainer.test_devices import Tied
from trainmaster import models
from trainmaster.checkpoint.state import capture
from trainmaster.checkpoint.state.save_shares import owned, place_of
from trainmaster.contract.config import ModelConfig, PipelineConfig
from trainmaster.errors import ConfigError
from trainmaster.parallel.stages import pipeline
from trainmaster.parallel.stages.partition import Costs, by_operations, by_parameters, partition, table


def dearest(costs: Costs, ranges: list[range]) -> float:
    ends = [costs.stem, *([0.0] * (len(ranges) - 2)), costs.tail] if len(ranges) > 1 else [costs.stem + costs.tail]
    return max(end + sum(costs.blocks[i] for i in blocks) for end, blocks in zip(ends, ranges, strict=True))


def test_no_partition_is_better() -> None:
    numbers = random.Random(1)
    for _ in range(200):
        count = numbers.randint(1, 8)
        costs = Costs(numbers.random() * 3, [numbers.random() for _ in range(count)], numbers.random() * 3)
        stages = numbers.randint(1, count)
        found = partition(costs, stages)
        assert [i for blocks in found for i in blocks] == [*range(count)]
        every = [
            [range(a, b) for a, b in itertools.pairwise([0, *cuts, count])]
            for cuts in itertools.combinations(range(1, count), stages - 1)
        ]
        assert dearest(costs, found) == pytest.approx(min(dearest(costs, ranges) for ranges in every))


def test_embedding_and_head_count() -> None:
    assert partition(Costs(0, [1.0] * 8, 2.0), 2) == [range(5), range(5, 8)]
    assert partition(Costs(2.0, [1.0] * 8, 0), 2) == [range(3), range(3, 8)]


def test_fewer_blocks_than_stages_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"parallelism\.pp: 3 stages need at least as many blocks, and the model has 2"
    ):
        partition(Costs(0, [1.0, 1.0], 0), 3)


OPTIONS = {"layers": 3, "heads": 2, "width": 16, "context": 8}


def test_parameters_are_counted() -> None:
    costs = by_parameters(models.build(ModelConfig(name="gpt", options=OPTIONS), 0))
    assert costs == Costs(256 * 16, [12 * 16 * 16 + 32] * 3, 256 * 16 + 16)


@pytest.mark.parametrize("name", ["gpt", "llama", "moe"])
def test_operations_are_counted(name: str) -> None:
    model = models.build(ModelConfig(name=name, options=OPTIONS), 0)
    costs = by_operations(model, 8)
    assert costs.stem == 0
    assert costs.tail == 2 * 8 * 16 * 256
    attention = 2 * 2 * 8 * 8 * 16
    matrices = {"gpt": 12 * 16 * 16, "llama": (4 * 16 + 3 * 48) * 16, "moe": (4 * 16 + 2 * 3 * 48 + 8) * 16}[name]
    assert costs.blocks == [2 * 8 * matrices + attention] * 3


def test_the_table_shows_the_balance() -> None:
    costs = Costs(0, [1.0] * 8, 2.0)
    assert table(partition(costs, 2), costs, "compute") == (
        "stage  blocks  compute\n    0     0-4    50.0%\n    1     5-7    50.0%"
    )


def stages(model: nn.Module) -> list[pipeline.Stage]:
    """Divide a model into two stages, and return those of rank 0."""
    mesh: Any = SimpleNamespace(size=lambda: 2, get_local_rank=lambda: 0)
    return pipeline.apply(model, mesh, PipelineConfig(balance="Parameters"), 16, "fp32", None)[0]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Tied(tie=True, loose=False), r"start.weight is used in stages 0 and 1, .* its own; use pp 1, or"),
        (
            Tied(tie=False, loose=True),
            r"scale is in no block, .* so it belongs to no stage; name it there, or use pp 1",
        ),
    ],
    ids=["tied", "loose"],
)
def test_a_weight_that_several_stages_would_train_is_refused(model: nn.Module, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"parallelism.pp: {sentence}"):
        stages(model)
    assert [name for name, _ in model.named_children()] == ["start", "end", "layers"]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert len(stages(model)) == 1, "what is not trained stays the same in all stages"


@pytest.mark.parametrize("schedule", ["ZBV", "DualPipeV", "Interleaved1F1B"])
@pytest.mark.parametrize("plain", [True, False])
def test_the_stem_and_the_tail_share_a_weight_if_one_rank_has_it_as_a_plain_tensor(schedule: str, plain: bool) -> None:
    model = Tied(tie=True, loose=False)
    model.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
    mesh: Any = SimpleNamespace(size=lambda: 2, get_local_rank=lambda: 0)
    config = PipelineConfig.model_validate({"schedule": schedule, "balance": "Parameters"})
    if schedule == "Interleaved1F1B" or not plain:
        with pytest.raises(ConfigError, match=r"start.weight is used in stages 0 and 3"):
            pipeline.apply(model, mesh, config, 16, "fp32", None, plain=plain)
        return
    first, last = pipeline.apply(model, mesh, config, 16, "fp32", None, plain=plain)[0]
    assert first.ends[0].weight is last.ends[0].weight


def test_what_is_not_trained_and_is_in_no_stage_is_saved_once() -> None:
    saved = []
    for rank in range(2):
        model = Tied(tie=False, loose=True)
        model.scale.requires_grad_(False)
        model.register_buffer("seen", torch.zeros(2))
        with process_group(rank, 2):
            things = {"model": tm.parallelize(model, {"pp": 2}, sequence=4, micro_batches=2).model}
            pieces = owned(capture.capture(things, rank), place_of(things, rank, 2))
        saved.append({piece.name for piece in pieces})
    assert {"model.scale", "model.seen", "model.start.weight", "model.layers.0.weight"} <= saved[0]
    assert not saved[0] & saved[1]
    assert {"model.layers.1.weight", "model.end.weight"} <= saved[1]
