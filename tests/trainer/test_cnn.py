"""A convolutional network on labelled images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks
from trainmaster import data, models, parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.errors import ConfigError, DataError
from trainmaster.models import allowed_parallelism


def config(folder: Path, **fields: Any) -> TrainingConfig:
    """Images of 3 classes: a bright row at another height for each."""
    labels = np.arange(60) % 3
    inputs = np.random.default_rng(0).integers(0, 99, (60, 1, 8, 8)).astype(np.uint8)
    inputs[np.arange(60), 0, 1 + 3 * labels % 8] = 255
    if not (folder / "inputs.npy").exists():
        np.save(folder / "inputs.npy", inputs)
        np.save(folder / "labels.npy", labels)
    given = {"model": {"name": "cnn", "options": {"classes": 3}}, "data": {"source": "arrays", "path": str(folder)}}
    return TrainingConfig.model_validate({**given, "steps": 1, "batch": {"global": 20}, **fields})


def test_it_learns(tmp_path: Path) -> None:
    job = config(tmp_path)
    source, model = data.build(job), models.build(job.model, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(40):
        batch = source.batch(20 * step, range(20))
        loss = parallel.cross_entropy(model(batch.inputs), batch.targets) / source.valid_tokens(20 * step, 20)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def digits(folder: Path) -> TrainingConfig:
    job = config(folder, data={"source": "images", "path": "@digits"})
    return job.model_copy(update={"model": job.model.model_copy(update={"options": {}})})


def test_digits_are_images_of_scikit_learn(tmp_path: Path) -> None:
    source = data.build(digits(tmp_path))
    batch = source.batch(0, range(20))
    assert (source.samples, batch.inputs.shape) == (1797, (20, 1, 8, 8))
    assert (batch.inputs.min(), batch.inputs.max()) == (0.0, 1.0)
    assert set(source.batch(0, range(200)).targets.tolist()) == set(range(10))


def test_without_scikit_learn_there_are_no_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"^data\.path: @digits needs scikit-learn in the image: pip install sciki"):
        data.build(digits(tmp_path))


@pytest.mark.processes
def test_ranks_learn_digits(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    told = {"model": {"name": "cnn"}, "data": {"source": "images", "path": "@digits"}}
    job = Job(ranks, tmp_path, text, **told, steps=150, batch={"global": 64}, checkpoint={"every": 150})
    done = job.round(1)
    assert done.codes == [0, 0], done.output
    assert job.losses[1] > 2  # of ten classes, by chance 2.3
    assert job.losses[150] < 1


def test_text_is_refused_and_images_are_for_no_other_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data\.source: text isn't what model cnn takes; images or arrays would be"):
        data.objective(config(tmp_path, data={"path": "@stdlib"}))
    with pytest.raises(ConfigError, match=r"^data\.source: arrays isn't what model gpt takes; text, tokens, par"):
        data.objective(config(tmp_path, model={"name": "gpt"}))


@pytest.mark.parametrize("axis", ["tp", "cp", "pp"])
def test_only_its_data_is_split(tmp_path: Path, axis: str) -> None:
    with pytest.raises(ConfigError, match=rf"^parallelism\.{axis}: model cnn can't be taken apart along {axis}"):
        allowed_parallelism.validate(config(tmp_path, parallelism={axis: 2}))


@pytest.mark.parametrize(
    ("inputs", "labels", "words"),
    [
        (np.zeros((60, 8, 8), np.uint8), np.zeros(60, int), "inputs.npy has dtype uint8 and shape"),
        (np.zeros((60, 1, 8, 8), np.float32), np.zeros(59, int), "labels.npy has dtype int64 and shape"),
        (np.zeros((60, 1, 8, 9), np.uint8), np.zeros(60, int), "holds inputs of shape"),
        (np.zeros((60, 1, 8, 8), np.uint8), np.full(60, 3), "holds labels from 3 to 3"),
        (np.zeros((9, 1, 8, 8), np.uint8), np.zeros(9, int), "holds 9 samples"),
        (np.array([{}] * 60), np.zeros(60, int), "inputs.npy can't be read"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, inputs: Any, labels: Any, words: str) -> None:
    np.save(tmp_path / "inputs.npy", inputs)
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(DataError, match=words):
        data.build(config(tmp_path))
