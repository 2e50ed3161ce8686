"""The loss of a model that only guesses, which the report draws next to the loss of a run over text."""

from __future__ import annotations

import importlib
import os
from itertools import islice
from typing import Any

from pydantic import ValidationError

from trainmaster.contract.config import TrainingSpec
from trainmaster_operator.cli.this_machine import trainer_checks

MOST_FILES = 10_000
SAMPLE_BYTES = 2**20


def guessing_loss(training: dict[str, Any]) -> float | None:
    """Return the unigram entropy of the text of a job, in nats per byte, from a sample of it.

    It is the loss of a model that guesses each byte by its frequency, without the bytes before it. Return None for
    other data, for a directory of very many files, which would take long to list, and if the text can no longer be
    read.
    """
    try:
        spec = TrainingSpec.model_validate(training)
    except ValidationError:  # The job is of another version.
        return None
    if spec.data.source == "text" and spec.data.path != "@stdlib" and _has_many_files(spec.data.path):
        return None
    errors = importlib.import_module("trainmaster.errors")
    try:
        return trainer_checks.unigram_entropy(spec, SAMPLE_BYTES)
    except (OSError, errors.DataError, errors.ConfigError):
        return None


def _has_many_files(folder: str) -> bool:
    files = (name for _, _, names in os.walk(folder) for name in names)
    return sum(1 for _ in islice(files, MOST_FILES + 1)) > MOST_FILES
