"""`training.deterministic`: what torch and CUDA are told, and that they are told before CUDA starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire import environment
from trainmaster.rank.reporter import Reporter
from trainmaster.train import determinism, loop
from trainmaster.train.process_group import World


def config(**training: Any) -> TrainingConfig:
    return TrainingConfig.model_validate({"data": {"path": "@stdlib"}, "steps": 1, "batch": {"global": 1}, **training})


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which nothing has been said of kernels; and so it is afterwards."""
    for name in (determinism.CUBLAS_WORKSPACE, environment.DIGESTS):
        monkeypatch.setenv(name, "")  # so that it is restored whatever becomes of it
        monkeypatch.delenv(name)
    for name in ("deterministic", "benchmark"):
        monkeypatch.setattr(torch.backends.cudnn, name, name == "benchmark")
    yield
    torch.use_deterministic_algorithms(False)


def told() -> tuple[bool, bool, bool, str | None]:
    """(torch's flag, that of cuDNN, whether cuDNN tries which kernel is fast, cuBLAS's workspace)."""
    cudnn = torch.backends.cudnn
    flag = torch.are_deterministic_algorithms_enabled()
    return flag, cudnn.deterministic, cudnn.benchmark, os.environ.get(determinism.CUBLAS_WORKSPACE)


DETERMINISTIC = (True, True, False, ":4096:8")
AS_EVER = (False, False, True, None)


@pytest.mark.parametrize(("wanted", "found"), [(True, DETERMINISTIC), (False, AS_EVER)])
def test_a_job_that_wants_it_computes_with_deterministic_kernels_alone(wanted: bool, found: Any) -> None:
    determinism.enforce(config(deterministic=wanted))
    assert told() == found


@pytest.mark.parametrize(("gpu", "found"), [(True, DETERMINISTIC), (False, AS_EVER)])
def test_a_run_whose_states_are_compared_has_them_on_a_gpu(
    gpu: bool, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setenv(environment.DIGESTS, "1")
    determinism.enforce(config())
    assert told() == found


def test_a_workspace_that_the_job_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(determinism.CUBLAS_WORKSPACE, ":16:8")
    determinism.enforce(config(deterministic=True))
    assert told()[3] == ":16:8"


def test_a_rank_is_told_before_it_has_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Joined(Exception):
        pass

    def join(*_: Any) -> World:
        raise Joined(told())

    monkeypatch.setattr(World, "join", join)
    with pytest.raises(Joined) as joined:
        loop.Training(config(deterministic=True), Reporter())
    assert joined.value.args == (DETERMINISTIC,)


def test_an_image_that_does_not_know_the_field_is_not_sent_its_default() -> None:
    assert "deterministic" not in config().model_dump()
    assert config(deterministic=True).model_dump()["deterministic"] is True
