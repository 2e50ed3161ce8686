"""What each parallel strategy promises beside parity: the same bits in each run, and whole gradients."""

from __future__ import annotations

import math

import pytest
import torch

from tests.trainer import parallel_probe
from tests.trainer.ranks import Ranks
from trainmaster import parallel

MESHES = [
    "replicate-3",
    "replicate-4",
    "fsdp2-2",
    "hsdp-2x2",
    "tensor-2",
    "shard-tensor-2x2",
    "context-2",
    "pipeline-2",
    "expert-2",
]


@pytest.mark.processes
@pytest.mark.parametrize("mesh", MESHES)
def test_two_runs_and_all_their_ranks_end_with_the_same_bits(ranks: Ranks, mesh: str) -> None:
    first, second = ranks.call(parallel_probe.digests, mesh)
    assert first == second


@pytest.mark.processes
@pytest.mark.parametrize("mesh", MESHES)
def test_the_norm_counts_each_gradient_once(ranks: Ranks, mesh: str) -> None:
    norms = ranks.call(parallel_probe.norms, mesh)
    assert sum(norms["sound"]) == pytest.approx(norms["whole"], rel=1e-6)


@pytest.mark.processes
@pytest.mark.parametrize("mesh", MESHES)
def test_a_gradient_that_is_not_finite_shows_whichever_replica_has_it(ranks: Ranks, mesh: str) -> None:
    assert not math.isfinite(sum(ranks.call(parallel_probe.norms, mesh)["spoilt"]))


@pytest.mark.processes
@pytest.mark.parametrize("mesh", ["hsdp-2x2", "pipeline-2", "tensor-2", "expert-2"])
def test_bf16_computes_coarsely_and_keeps_fp32_weights(ranks: Ranks, mesh: str) -> None:
    losses = ranks.call(parallel_probe.bf16, mesh)
    assert losses["kept"] == ["torch.float32"]
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=2e-2)


def test_gradients_of_a_plain_model_have_a_norm_and_a_scale_too() -> None:
    model = torch.nn.Linear(3, 2, bias=False)
    model.weight.grad = torch.full((2, 3), 2.0)
    assert parallel.gradient_norm_squared(model).item() == pytest.approx(24.0)
    parallel.scale_gradients_(model, 0.5)
    assert model.weight.grad.tolist() == [[1.0] * 3] * 2
