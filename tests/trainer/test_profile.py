"""A pipeline cut by measured time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import models
from trainmaster.contract.config import ModelConfig
from trainmaster.parallel.stages import block_times
from trainmaster.parallel.stages.partition import partition
from trainmaster.train.measures.step_log import StepLog

MODEL = ModelConfig(name="gpt", options={"layers": 4, "heads": 2, "width": 16, "context": 8})


class Clock:
    """Goes on only when a block runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def slow(self, module: nn.Module, seconds: float) -> None:
        forward: Callable[..., Any] = module.forward

        def slowly(*inputs: Any) -> Any:
            self.now += seconds
            return forward(*inputs)

        module.forward = slowly


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(block_times, "time", made)
    return made


def test_each_part_is_timed_by_itself(clock: Clock) -> None:
    model = models.build(MODEL, 0)
    for index, seconds in enumerate((1.0, 1.0, 4.0, 1.0)):
        clock.slow(model.blocks[index], seconds)
    clock.slow(model.head, 2.0)
    costs = block_times.by_time(model, 8, "fp32")
    assert (costs.stem, costs.blocks, costs.tail) == (0.0, [1.0, 1.0, 4.0, 1.0], 2.0)
    assert partition(costs, 2) == [range(3), range(3, 4)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["gpt", "llama", "moe"])
def test_the_model_is_left_as_it_was(name: str, precision: str) -> None:
    model = models.build(MODEL.model_copy(update={"name": name}), 0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    block_times.by_time(model, 8, precision)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_profile_is_measured_once_in_a_jobs_life(clock: Clock, tmp_path: Path) -> None:
    kept = tmp_path / "checkpoints" / "profile.json"
    model = models.build(MODEL, 0)
    clock.slow(model.blocks[1], 3.0)
    first = block_times._kept_or_measured(model, 8, "fp32", kept)
    assert first == [0.0, 0.0, 3.0, 0.0, 0.0, 0.0]
    clock.slow(model.blocks[2], 5.0)
    assert block_times._kept_or_measured(model, 8, "fp32", kept) == first
    assert [path.name for path in kept.parent.iterdir()] == ["profile.json"]


def test_the_profile_of_another_model_does_not_count(clock: Clock, tmp_path: Path) -> None:
    kept = tmp_path / "profile.json"
    kept.write_text(json.dumps({"seconds": [1.0] * 3}))
    assert block_times._kept_or_measured(models.build(MODEL, 0), 8, "fp32", kept) == [0.0] * 6


def test_rank_0_prints_how_a_pipeline_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (False, True):
        StepLog(shown, 10).print_note("stage  blocks  time")
    StepLog(True, 10).print_note("")
    assert capsys.readouterr().out == "stage  blocks  time\n"
