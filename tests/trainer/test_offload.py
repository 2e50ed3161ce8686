"""Shards in host memory while their rank computes on a device. Most tensors here have a device and no values."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

import trainmaster as tm
from tests.trainer.process_groups import process_group
from trainmaster import parallel
from trainmaster.checkpoint.state import capture
from trainmaster.contract.config import OptimizerConfig, TrainingConfig
from trainmaster.errors import ConfigError
from trainmaster.optim.optimizer import ShardOptimizer
from trainmaster.parallel.elementwise_dtensor import elementwise
from trainmaster.parallel.forward_and_backward import Parallel
from trainmaster.parallel.local_shard import local
from trainmaster.parallel.loss import cross_entropy

DEVICE = torch.device("cuda", 0)


class Offloaded(nn.Module):  # type: ignore[misc]
    """Its parameters lie in host memory, and it computes where its tokens are."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(16, 16))

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self.table.to(tokens.device))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Offloaded]:
    """Its gradients come from nowhere: autograd has no thread for a device that isn't there."""

    def backward(loss: Tensor) -> None:
        made.table.grad = torch.empty_like(made.table)

    monkeypatch.setattr(Tensor, "backward", backward)
    with FakeTensorMode(allow_non_fake_inputs=True):
        made = Offloaded()
        yield made


def test_a_loss_is_summed_where_it_is_computed(model: Offloaded) -> None:
    mesh: Any = SimpleNamespace(coordinate=lambda axis: 0)
    sync: Any = SimpleNamespace(before=lambda last: None, after=lambda: None)
    spread = Parallel(model, mesh, sync, SimpleNamespace(), None, cross_entropy, [])  # type: ignore[arg-type]
    tokens = torch.zeros(2, 4, dtype=torch.int64, device=DEVICE)
    assert spread.forward_backward([(tokens, tokens)] * 2, 2, 16.0).device == DEVICE


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_gradients_are_clipped_and_applied_where_they_are(
    model: Offloaded, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = ShardOptimizer(model, OptimizerConfig.model_validate({"name": name}), "fp16")
    model.table.grad = torch.empty_like(model.table)
    assert parallel.gradient_norm_squared(model).device.type == "cpu"
    parallel.scale_gradients_(model, torch.ones((), device=DEVICE))
    found: list[Tensor] = []
    monkeypatch.setattr(optimizer.inner, "step", lambda: found.append(optimizer.inner.found_inf))
    optimizer.step(0.1, torch.zeros((), device=DEVICE))
    assert found[0].device.type == "cpu"


@pytest.fixture
def parameter() -> DTensor:
    """Of [4, 2], on a mesh of devices of another type than the host's."""
    mesh = DeviceMesh("meta", torch.arange(1), _init_backend=False, _rank=0)
    part = torch.zeros(4, 2)
    spec = DTensorSpec(mesh, (Shard(0),), tensor_meta=TensorMeta(part.shape, part.stride(), part.dtype))
    return DTensor(part, spec, requires_grad=False)


def test_sharding_leaves_shards_in_host_memory(parameter: DTensor) -> None:
    with elementwise():  # as sharding does it
        made = nn.Parameter(parameter)
    assert local(made).data_ptr() == local(parameter).data_ptr()


def test_a_checkpoint_has_the_optimizers_own_memory_and_no_copy_of_it(parameter: DTensor) -> None:
    moment = torch.ones(4, 2, dtype=torch.bfloat16)
    shard = capture.as_shard_of(moment, parameter)
    assert isinstance(shard, DTensor)
    assert shard.to_local().data_ptr() == moment.data_ptr()
    assert (shard.shape, shard.placements, shard.dtype) == (parameter.shape, parameter.placements, moment.dtype)


def test_the_noise_scale_is_refused() -> None:
    training = {
        "data": {"path": "@stdlib"},
        "steps": 2,
        "batch": {"global": 8, "micro": 2, "noiseScale": {}},
        "parallelism": {"dpShard": 2, "sharding": {"offload": True}},
    }
    with pytest.raises(ValidationError, match=r"batch\.noiseScale: with parallelism\.sharding\.offload the gradients"):
        TrainingConfig.model_validate(training)


def test_a_users_loop_without_shards_is_refused() -> None:
    words = r"parallelism\.sharding\.offload keeps shards in .* set dpShard to 2 or more"
    with process_group(), pytest.raises(ConfigError, match=words):
        tm.parallelize(nn.Linear(2, 2), {"dpShard": 1, "sharding": {"offload": True}})
