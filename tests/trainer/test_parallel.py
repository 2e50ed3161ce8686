"""What each parallel strategy promises beside parity: the same bits in each run, and whole gradients."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainmaster import models, parallel
from trainmaster.contract.config import ModelConfig

ROOT = Path(__file__).parents[2]
MESHES = ["replicate-3", "replicate-4", "fsdp2-2", "hsdp-2x2"]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What `parallel_probe.py` tells of real ranks."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "trainer")}
    command = [sys.executable, str(Path(__file__).with_name("parallel_probe.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.processes
@pytest.mark.parametrize("mesh", MESHES)
def test_two_runs_and_all_their_ranks_end_with_the_same_bits(found: dict[str, Any], mesh: str) -> None:
    digests = found["digests"][mesh]
    assert len(digests) >= 4
    assert len(set(digests)) == 1


@pytest.mark.processes
@pytest.mark.parametrize("mesh", MESHES)
def test_the_norm_counts_each_gradient_once(found: dict[str, Any], mesh: str) -> None:
    model = models.build(ModelConfig(options={"layers": 2, "heads": 2, "width": 32, "context": 16}), seed=0)
    expected = sum(p.numel() for p in model.parameters()) * 0.25
    assert sum(found["norms"][mesh]["sound"]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.processes
@pytest.mark.parametrize("mesh", MESHES)
def test_a_gradient_that_is_not_finite_shows_whichever_replica_has_it(found: dict[str, Any], mesh: str) -> None:
    assert not math.isfinite(sum(found["norms"][mesh]["spoilt"]))


@pytest.mark.processes
def test_bf16_computes_coarsely_and_keeps_fp32_weights(found: dict[str, Any]) -> None:
    losses = found["bf16"]
    assert losses["kept"] == ["torch.float32"]
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=2e-2)


def test_gradients_of_a_plain_model_have_a_norm_and_a_scale_too() -> None:
    model = torch.nn.Linear(3, 2, bias=False)
    model.weight.grad = torch.full((2, 3), 2.0)
    assert parallel.gradient_norm_squared(model).item() == pytest.approx(24.0)
    parallel.scale_gradients_(model, 0.5)
    assert model.weight.grad.tolist() == [[1.0] * 3] * 2


def test_a_mesh_has_no_other_axes() -> None:
    with pytest.raises(AssertionError, match=r"\['tp'\] are no axes"):
        parallel.make_mesh({"tp": 2}, "cpu")
