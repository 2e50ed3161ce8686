"""The data of evaluations: which samples they take. Imports neither torch nor numpy by itself; `build` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainmaster import data
from trainmaster.contract.config import BatchConfig, EvaluationConfig, TrainingConfig
from trainmaster.data import files, tokens
from trainmaster.data.source import Source
from trainmaster.errors import ConfigError, DataError
from trainmaster.models import facts

if TYPE_CHECKING:
    from trainmaster.data.labelled import Labelled


def find(config: TrainingConfig, evaluation: EvaluationConfig) -> files.Text | tokens.Tokens | Labelled:
    """What samples are cut from. Raises ConfigError if it isn't there, or holds none that the model can take."""
    context = facts(config.model).context
    with _of_evaluation():
        data.objective(_as_job(config, evaluation))
        found = data.find(evaluation.data)
        if isinstance(found, files.Text | tokens.Tokens) and found.size <= context:
            raise DataError(
                f"data.path: {found.path} holds {found.size} {found.unit}, less than one sequence; "
                f"{context + 1} or more would do (model.options.context {context})"
            )
        data.check(_as_job(config, evaluation), found)
    return found


def build(config: TrainingConfig, evaluation: EvaluationConfig) -> tuple[Source, int]:
    """(the source, how many of its samples an evaluation takes, from the first on). Raises ConfigError."""
    find(config, evaluation)
    with _of_evaluation():
        source = data.build(_as_job(config, evaluation))
    return source, min(evaluation.samples or source.samples, source.samples)


def _as_job(config: TrainingConfig, evaluation: EvaluationConfig) -> TrainingConfig:
    """Not with the run's seed: runs that differ in it are compared on the same samples."""
    return config.model_copy(update={"data": evaluation.data, "seed": 0, "batch": BatchConfig(global_=1)})


@contextmanager
def _of_evaluation() -> Iterator[None]:
    """Sentences about `data` are about `evaluation.data` here."""
    try:
        yield
    except (ConfigError, DataError) as error:
        lines = (f"evaluation.{line}" if line.startswith("data.") else line for line in str(error).splitlines())
        raise ConfigError("\n".join(lines)) from None
