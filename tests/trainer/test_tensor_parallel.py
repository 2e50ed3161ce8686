"""Tensor parallelism of modules that are not ours. The other ranks are not there, and collectives do nothing."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

import trainmaster as tm
from tests.trainer.process_groups import process_group
from trainmaster.contract.config import TensorConfig
from trainmaster.errors import ConfigError
from trainmaster.parallel import tensor_parallel
from trainmaster.parallel.mesh import Mesh


class Words(nn.Module):
    plan = tm.Plan(tensor={"start": "vocabulary", "end": "head"})

    def __init__(self) -> None:
        super().__init__()
        self.start, self.end = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.end.weight = self.start.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.end(self.start(tokens))


def split(model: nn.Module, rank: int = 0) -> nn.Module:
    with process_group(rank, 2):
        return tensor_parallel.apply(model, Mesh({"tp": 2}, "cpu")["tp"], TensorConfig(sequence=False))


def test_modules_that_share_a_parameter_share_its_part() -> None:
    model = split(Words())
    assert model.end.weight is model.start.weight
    assert [tuple(p.to_local().shape) for p in model.parameters()] == [(4, 4)]


def test_a_shared_parameter_that_is_split_in_two_ways_is_refused() -> None:
    model = Words()
    model.plan = tm.Plan(tensor={"start": "vocabulary"})
    with pytest.raises(ConfigError, match=r"end.weight is a parameter that another module has, too, .* or use tp 1"):
        split(model)
