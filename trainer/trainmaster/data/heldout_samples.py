"""The data of evaluations: which samples they take. It imports neither torch nor numpy; `build` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster import data
from trainmaster.contract.config import BatchConfig, EvaluationConfig, TrainingConfig
from trainmaster.data.sequence import Sequence
from trainmaster.data.source import Source
from trainmaster.errors import ConfigError, DataError
from trainmaster.models import facts

if TYPE_CHECKING:
    from trainmaster.data.labelled_samples import Labelled


def find(config: TrainingConfig, evaluation: EvaluationConfig) -> Sequence | Labelled:
    """Return the data of an evaluation. Raises ConfigError if it is missing, or has no sample that the model can
    take."""
    with _of_evaluation():
        data.objective(_as_job(config, evaluation))
        found = data.find(evaluation.data)
        _check(config, evaluation, found)
    return found


def build(
    config: TrainingConfig,
    evaluation: EvaluationConfig,
    folder: Path | None = None,
    beat: Callable[[], None] = lambda: None,
) -> tuple[Source, int]:
    """Return (source, number of its first samples that an evaluation takes). `folder` and `beat`: as for
    `Sequence.count`. Raises ConfigError."""
    found = find(config, evaluation)
    with _of_evaluation():
        if isinstance(found, Sequence) and not found.counted:
            found.count(folder, beat)
            _check(config, evaluation, found)
        source = data.build_of(_as_job(config, evaluation), found)
    return source, min(evaluation.samples or source.samples, source.samples)


def _check(config: TrainingConfig, evaluation: EvaluationConfig, found: Sequence | Labelled) -> None:
    context = facts(config.model).context
    if isinstance(found, Sequence) and found.counted and found.size <= context:
        raise DataError(
            f"data.path: {found.path} holds {found.size} {found.unit}, less than one sequence; "
            f"{context + 1} or more would do (model.options.context {context})"
        )
    data.check(_as_job(config, evaluation), found)


def _as_job(config: TrainingConfig, evaluation: EvaluationConfig) -> TrainingConfig:
    """Return the config with the evaluation's data and seed 0.

    So runs that differ in their seeds are compared on the same samples.
    """
    return config.model_copy(update={"data": evaluation.data, "seed": 0, "batch": BatchConfig(global_=1)})


@contextmanager
def _of_evaluation() -> Iterator[None]:
    """A context in which errors about `data` become errors about `evaluation.data`."""
    try:
        yield
    except (ConfigError, DataError) as error:
        lines = (f"evaluation.{line}" if line.startswith("data.") else line for line in str(error).splitlines())
        raise ConfigError("\n".join(lines)) from None
