"""Whether the data fits the model and the batch: what is refused before a run starts. It imports neither torch nor
numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.contract.config import TrainingConfig
from trainmaster.data.data_sources import validate
from trainmaster.data.sequence import Sequence
from trainmaster.data.source_options import LabelledOptions
from trainmaster.errors import ConfigError, DataError
from trainmaster.models import facts as facts_of
from trainmaster.models.model_facts import Objective

if TYPE_CHECKING:
    from trainmaster.data.labelled_samples import Labelled


def check(config: TrainingConfig, found: Sequence | Labelled) -> int:
    """Return the number of windows of the data, or 0 if its tokens are not counted yet.

    Raises DataError if they do not fill a global batch, or if the model does not know the data's tokens.
    """
    model, global_batch = facts_of(config.model), config.batch.global_
    masked = objective(config) == "MaskedTokens"
    if not isinstance(found, Sequence):
        if len(found.inputs) < global_batch:
            raise DataError(
                f"data.path: {found.path} holds {len(found.inputs)} samples; one batch takes {global_batch}"
            )
        found.check(model.image, model.vocabulary)
        return len(found.inputs)
    count = -(-(found.size - (not masked)) // model.context) if found.counted else 0
    if found.counted and count < global_batch:
        raise DataError(
            f"data.path: {found.path} holds {found.size} {found.unit}, which is {count} windows of {model.context}; "
            f"one global batch takes {global_batch}"
        )
    if masked and model.mask_token is not None and model.mask_token < (found.alphabet or 0):
        raise ConfigError(
            f"model.options.mask_token: {model.mask_token} is one of the {found.unit} of the data, too; "
            f"{found.alphabet} would be right, with model.options.vocabulary {(found.alphabet or 0) + 1} or more"
        )
    found.check(model.vocabulary)
    return count


def objective(config: TrainingConfig) -> Objective:
    """Return what the samples are used for. Raises ConfigError if the model is not made for it."""
    options, model = validate(config.data), facts_of(config.model)
    if isinstance(options, LabelledOptions) != (model.objective == "Class"):
        right = "images or arrays" if model.objective == "Class" else "text, tokens, parquet or huggingface"
        raise ConfigError(
            f"data.source: {config.data.source} isn't what model {model.name} takes; {right} would be right"
        )
    asked = None if isinstance(options, LabelledOptions) else options.objective
    if asked is not None and asked != model.objective:
        raise ConfigError(
            f"data.options.objective: {asked} isn't what model {model.name} is made for; "
            f"{model.objective} would be right"
        )
    return model.objective
