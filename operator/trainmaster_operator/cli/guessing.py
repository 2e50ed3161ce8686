"""The loss of a model that only guesses, which the report draws beside the loss of a run over text."""

from __future__ import annotations

import importlib
import math
import os
from collections import Counter
from itertools import islice
from typing import Any

from pydantic import ValidationError

from trainmaster.contract.config import TrainingSpec
from trainmaster_operator.cli import image

MOST_FILES = 10_000
SAMPLE_BYTES = 2**20
PROBES = 64


def guessing_loss(training: dict[str, Any]) -> float | None:
    """Return the unigram entropy of the text of a job, in nats per byte, from a sample of it.

    It is the loss of a model that guesses each byte by how often it occurs, without looking at the bytes before it.
    Return None for other data, for a folder of very many files, which would take long to list, and if the text can't be
    read any more.
    """
    data = image.trainer("data")
    try:
        config = TrainingSpec.model_validate(training).data
    except ValidationError:  # of another version
        return None
    if data is None or config.source != "text" or (config.path != "@stdlib" and _has_many_files(config.path)):
        return None
    errors = importlib.import_module("trainmaster.errors")
    try:
        return _entropy(data.find(config))
    except (OSError, errors.DataError, errors.ConfigError):
        return None


def _has_many_files(folder: str) -> bool:
    files = (name for _, _, names in os.walk(folder) for name in names)
    return sum(1 for _ in islice(files, MOST_FILES + 1)) > MOST_FILES


def _entropy(text: Any) -> float:
    """Of `text` (`trainmaster.data.files.Text`): all of it if it is small, else evenly spread parts."""
    each = SAMPLE_BYTES // PROBES
    spare = max(0, text.size - each)
    counts: Counter[int] = Counter()
    if text.size <= SAMPLE_BYTES:
        counts.update(text.read(0, text.size))
    else:
        for probe in range(PROBES):
            start = probe * spare // (PROBES - 1)
            counts.update(text.read(start, start + each))
    total = counts.total()
    return -sum(n / total * math.log(n / total) for n in counts.values())
