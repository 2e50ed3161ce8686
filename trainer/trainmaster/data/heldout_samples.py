"""The data of evaluations: which samples they take. It imports neither torch nor numpy; `build` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainmaster import data
from trainmaster.contract.config import BatchConfig, EvaluationConfig, TrainingConfig
from trainmaster.data import text_files, token_files
from trainmaster.data.source import Source
from trainmaster.errors import ConfigError, DataError
from trainmaster.models import facts

if TYPE_CHECKING:
    from trainmaster.data.labelled_samples import Labelled


def find(config: TrainingConfig, evaluation: EvaluationConfig) -> text_files.Text | token_files.Tokens | Labelled:
    """Return the data of an evaluation. Raises ConfigError if it is missing, or has no sample that the model can
    take."""
    context = facts(config.model).context
    with _of_evaluation():
        data.objective(_as_job(config, evaluation))
        found = data.find(evaluation.data)
        if isinstance(found, text_files.Text | token_files.Tokens) and found.size <= context:
            raise DataError(
                f"data.path: {found.path} holds {found.size} {found.unit}, less than one sequence; "
                f"{context + 1} or more would do (model.options.context {context})"
            )
        data.check(_as_job(config, evaluation), found)
    return found


def build(config: TrainingConfig, evaluation: EvaluationConfig) -> tuple[Source, int]:
    """Return (source, number of its first samples that an evaluation takes). Raises ConfigError."""
    find(config, evaluation)
    with _of_evaluation():
        source = data.build(_as_job(config, evaluation))
    return source, min(evaluation.samples or source.samples, source.samples)


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
