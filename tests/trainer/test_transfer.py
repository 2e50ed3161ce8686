"""A step makes the host wait for its device nowhere, so that the device always has work to do.

Where there is a GPU, its driver says so. Everywhere a step of each strategy is run with tensors that have no values:
whoever would wait for one fails.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode, unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainmaster import parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.parallel.mesh import Mesh
from trainmaster.rank.reporter import Reporter
from trainmaster.train import loop
from trainmaster.train.async_transfer import Reading, to_device
from trainmaster.train.process_group import World
from trainmaster.train.step_gradients import StepGradients
from trainmaster.train.step_numbers import StepNumbers

STEPS = 9
LAYOUTS: dict[str, dict[str, Any]] = {
    "replicas": {"parallelism": {"dpReplicate": 2}},
    "replicas in bf16": {"parallelism": {"dpReplicate": 2}, "precision": "bf16"},
    "a loss scale": {"parallelism": {"dpShard": 2}, "precision": "fp16"},
    "shards": {"parallelism": {"dpShard": 2}},
    "replicas of shards": {"parallelism": {"dpReplicate": 2, "dpShard": 2}},
    "tensor": {"parallelism": {"tp": 2}},
    "context": {"parallelism": {"cp": 2}},
    "muon": {"parallelism": {"dpShard": 2}, "optimizer": {"name": "muon", "lr": 1e-2}},
    "recomputed": {"parallelism": {"dpShard": 2}, "recompute": "Selective"},
}


def config(folder: Path, **training: Any) -> TrainingConfig:
    (folder / "text.txt").write_text("words " * 4096)
    return TrainingConfig.model_validate(
        {
            "model": {"options": {"layers": 2, "width": 32, "heads": 2, "context": 32}},
            "data": {"path": str(folder)},
            "steps": STEPS,
            "batch": {"global": 8, "micro": 2},
            "optimizer": {"warmupSteps": 2, "lr": 1e-2},
            "device": "CPU",
            **training,
        }
    )


class UnderWay:
    """A reading of numbers that a device hasn't computed yet."""

    def __init__(self, values: Tensor) -> None:
        pass

    def arrived(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def _same_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process group puts its rank before every line of a traceback, for good: it is undone after the test."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.fixture
def valueless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`Training` of some config, without values and without peers. Its steps end before anybody reads their numbers."""
    make, micro_batches = Mesh._make, StepGradients._micro_batches

    def made(self: Mesh, *args: Any) -> Any:
        with unset_fake_temporarily():  # ranks are numbers
            return make(self, *args)

    def read(self: StepGradients, *place: Any) -> Iterator[tuple[Tensor, Tensor]]:
        batches = micro_batches(self, *place)
        while True:
            with unset_fake_temporarily():  # what is read lies on the host
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def training(**fields: Any) -> loop.Training:
        given = config(tmp_path, **fields)
        size = math.prod(fields["parallelism"].values())
        dist.init_process_group("fake", store=FakeStore(), rank=size - 1, world_size=size)
        monkeypatch.setattr(World, "join", lambda asked: World(size - 1, size, torch.device("cpu"), dist.HashStore()))
        return loop.Training(given, Reporter())

    monkeypatch.setattr(Mesh, "_make", made)
    monkeypatch.setattr(nn.Module, "to", lambda model, device: model)
    monkeypatch.setattr(StepGradients, "_micro_batches", read)
    monkeypatch.setattr(loop, "Reading", UnderWay)
    monkeypatch.setattr(StepNumbers, "settle", lambda self, wait: None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield training
    dist.destroy_process_group()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_step_needs_no_number_that_it_computes(name: str, valueless: Any) -> None:
    training = valueless(**LAYOUTS[name])
    for _ in range(3):
        training.one_step()
    assert training.step == 3


def test_a_step_that_looked_at_a_number_would_be_found(valueless: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = parallel.gradient_norm_squared
    monkeypatch.setattr(parallel, "gradient_norm_squared", lambda model: torch.tensor(norm(model).item()))
    training = valueless(**LAYOUTS["shards"])
    with pytest.raises(DataDependentOutputException):
        training.one_step()


def test_what_a_step_draws_is_keyed_by_its_number_and_by_this_ranks_place_in_the_batch(
    valueless: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, keys = valueless(**LAYOUTS["shards"], seed=5), []
    begin = training.parallel.rng.begin
    monkeypatch.setattr(training.parallel.rng, "begin", lambda *key: keys.append(key) or begin(*key))
    for _ in range(2):
        training.one_step()
    assert keys == [(5, 1, range(4, 8, 2)), (5, 2, range(4, 8, 2))]


class Late(Reading):
    """A reading of numbers that arrive when somebody waits for them."""

    def arrived(self) -> bool:
        return False


def test_what_is_saved_to_memory_has_its_own_steps_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(loop, "Reading", Late)
    training, kept = loop.Training(config(tmp_path, parallelism={}), Reporter()), []
    training.resume()  # which draws the initial weights
    monkeypatch.setattr(training.session, "due", lambda step: step > 1)
    monkeypatch.setattr(training.session, "remember", lambda step, common, *_: kept.append((step, common)))
    try:
        for _ in range(3):
            training.one_step()
    finally:
        dist.destroy_process_group()
    assert [(step, common["numbers"].get("step")) for step, common in kept] == [(2, 2), (3, 3)]
    assert all(math.isfinite(common["numbers"]["loss"]) for _, common in kept)


def test_on_the_host_nothing_is_copied() -> None:
    values = torch.arange(3.0)
    assert to_device(values, torch.device("cpu")) is values
    reading = Reading(values)
    values += 1
    assert reading.arrived()
    assert reading.values() == [0.0, 1.0, 2.0]


@pytest.mark.cuda
@pytest.mark.parametrize("fields", [{}, {"precision": "bf16"}, {"precision": "bf16", "compile": True}])
def test_a_gpu_waits_for_nobody(fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    training = loop.Training(config(tmp_path, parallelism={}, device="CUDA", **fields), Reporter())
    try:
        training.resume()  # which draws the initial weights
        for _ in range(3):  # the first compile, load kernels and make room
            training.one_step()
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(3):
            training.one_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        dist.destroy_process_group()
    assert training.step == 6
    assert training.world.device.type == "cuda"
