"""Checks of a job by the trainer itself, if it is installed: the open maps of options, and the data.

The trainer is imported by name and only if it is installed, because the operator's image has none. Neither torch nor
numpy is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ValidationError

from trainmaster.contract.config import DataConfig, ModelConfig, TrainingSpec
from trainmaster_operator.api.validation.problem import Path, Problem, placed

_TRAINING: Path = ("spec", "training")


def trainer(module: str) -> ModuleType | None:
    """Return a module of the trainer, by its full name; None if the trainer is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        return None


def option_problems(training: Any) -> Iterator[Problem]:
    """Yield models, sources and their options that the trainer does not know. `training`: as a person wrote it.

    What the models of the job refuse is reported elsewhere and skipped here.
    """
    models, data = trainer("trainmaster.models"), trainer("trainmaster.data")
    evaluation = training.get("evaluation") if isinstance(training, dict) else None
    parts: tuple[tuple[Any, Path, ModuleType | None, type[BaseModel]], ...] = (
        (training, ("model",), models, ModelConfig),
        (training, ("data",), data, DataConfig),
        (evaluation, ("evaluation", "data"), data, DataConfig),
    )
    for holder, path, module, model in parts:
        try:
            config = model.model_validate(holder.get(path[-1], {}) if isinstance(holder, dict) else None)
        except ValidationError:
            continue
        if module is not None:
            above = (*_TRAINING, *path[:-1])
            yield from _problems(partial(module.validate, config), above)


def layout_problems(training: TrainingSpec) -> Iterator[Problem]:
    """Yield parallelism and data that the model does not allow. `training` has valid options."""
    layout = trainer("trainmaster.models.allowed_parallelism")
    if layout is not None:
        yield from _problems(partial(layout.validate, training))
    data = trainer("trainmaster.data")
    if data is not None:
        yield from _problems(partial(data.objective, training))


def checkpoint_problems(training: TrainingSpec, saved: Any, directory: Any) -> Iterator[Problem]:
    """Yield the differences of a checkpoint of another model. `saved`: the model in its manifest. `training` has
    valid options."""
    models = trainer("trainmaster.models")
    if models is not None and isinstance(saved, dict):
        yield from _problems(partial(models.check_same, saved, training.model, f"checkpoint {directory}"))


def data_problems(training: TrainingSpec, world_size: int) -> Iterator[Problem]:
    """Yield data that does not exist or does not fill a global batch. `training` has valid options and an absolute
    path."""
    data = trainer("trainmaster.data")
    if data is None:
        return
    yield from _problems(lambda: data.check(training.at(world_size), data.find(training.data)))
    evaluation = training.evaluation
    if evaluation is not None:
        heldout = importlib.import_module("trainmaster.data.heldout_samples")
        yield from _problems(lambda: heldout.find(training, evaluation))


def unigram_entropy(training: TrainingSpec, at_most: int | None = None) -> float | None:
    """Return the entropy of the text's byte frequencies in nats per token, or that of a sample of `at_most` bytes;
    None for other data, or without the trainer."""
    data = trainer("trainmaster.data")
    if data is None or training.data.source != "text":
        return None
    return float(data.find(training.data).unigram_entropy(at_most))


def _problems(check: Callable[[], Any], above: Path = _TRAINING) -> Iterator[Problem]:
    """Yield a problem for each line of a refusal, which has the place before a colon: `model.options.layers: why`.
    `above`: the path of these places."""
    errors = importlib.import_module("trainmaster.errors")
    try:
        check()
    except (errors.ConfigError, errors.DataError) as error:
        for line in str(error).splitlines():
            place, words = placed(line)
            yield Problem((*above, *place), words)
