"""Tensor parallelism of modules that are not ours: what they share, and what their options say. The other ranks are not
there, and collectives do nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import trainmaster as tm
from tests.trainer.process_groups import process_group
from trainmaster.contract.config import TensorConfig
from trainmaster.errors import ConfigError
from trainmaster.parallel import tensor_parallel
from trainmaster.parallel.mesh import Mesh


class Words(nn.Module):
    plan = tm.Plan(tensor={"start": "vocabulary", "end": "head"})

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.start, self.end = nn.Embedding(8, 4, padding_idx=padding), nn.Linear(4, 8, bias=False)
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


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("padding", [2, 6])
def test_the_row_of_an_embeddings_padding_gets_no_gradient(rank: int, padding: int) -> None:
    model = Words(padding)
    model.end.weight = nn.Parameter(torch.zeros(8, 4))
    with process_group(rank, 2):
        tensor_parallel.apply(model, Mesh({"tp": 2}, "cpu")["tp"], TensorConfig(sequence=False))
        model.start(torch.arange(8).view(1, 8)).sum().backward()
        rows = model.start.weight.grad.to_local().any(1).tolist()
    assert rows == [row != padding for row in range(4 * rank, 4 * rank + 4)]
