"""Data sources whose order is a pure function of (seed, samples consumed, slot of the batch).

The batch of a step has `batch.global` slots. Slot s of a step that starts after `consumed` samples holds sample
`consumed + s` of the endless sequence of epochs. So every world size sees the same samples, and one integer is enough
to resume. Positions that are left out (`skipped_samples`) are passed over. The import of this package imports neither
torch nor numpy; `build` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.contract.config import DataConfig, TrainingConfig
from trainmaster.data import text_files, token_files
from trainmaster.data.source import IGNORED, Batch, Source
from trainmaster.data.source_options import LabelledOptions, TextOptions, TokenOptions, WindowOptions
from trainmaster.errors import ConfigError, DataError, unknown
from trainmaster.models import facts as facts_of
from trainmaster.models.model_facts import Objective
from trainmaster.models.strict_options import read

if TYPE_CHECKING:
    from trainmaster.data.labelled_samples import Labelled

__all__ = ["IGNORED", "SOURCES", "Batch", "Source", "build", "check", "find", "objective", "validate"]

SOURCES: dict[str, type[WindowOptions | LabelledOptions]] = {
    "text": TextOptions,
    "tokens": TokenOptions,
    "images": LabelledOptions,
    "arrays": LabelledOptions,
}


def validate(config: DataConfig) -> WindowOptions | LabelledOptions:
    """Return the source's options. Raises ConfigError, in a sentence, for a source or an option that is not known."""
    if config.source not in SOURCES:
        raise ConfigError(unknown("data.source", config.source, SOURCES))
    return read(SOURCES[config.source], config.options, "data.options")


def find(config: DataConfig) -> text_files.Text | token_files.Tokens | Labelled:
    """Return the data that samples are taken from. Raises ConfigError for the options, and DataError for missing
    data."""
    options = validate(config)
    if isinstance(options, LabelledOptions):
        from trainmaster.data import labelled_samples

        return labelled_samples.find(config.source, config.path)
    if isinstance(options, TokenOptions):
        return token_files.find(config.path, options)
    assert isinstance(options, TextOptions)
    return text_files.find(config.path, options)


def check(config: TrainingConfig, found: text_files.Text | token_files.Tokens | Labelled) -> int:
    """Return the number of windows of the data.

    Raises DataError if they do not fill a global batch, or if the model does not know the data's tokens.
    """
    model, global_batch = facts_of(config.model), config.batch.global_
    masked = objective(config) == "MaskedTokens"
    if not isinstance(found, text_files.Text | token_files.Tokens):
        if len(found.inputs) < global_batch:
            raise DataError(
                f"data.path: {found.path} holds {len(found.inputs)} samples; one batch takes {global_batch}"
            )
        found.check(model.image, model.vocabulary)
        return len(found.inputs)
    count = -(-(found.size - (not masked)) // model.context)
    if count < global_batch:
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
        right = "images or arrays" if model.objective == "Class" else "text or tokens"
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


def build(config: TrainingConfig) -> Source:
    """Return the source of `config.data`. Raises ConfigError, and DataError for data that cannot fill a global
    batch."""
    asked = objective(config)
    options, model, found = validate(config.data), facts_of(config.model), find(config.data)
    samples = check(config, found)
    if not isinstance(found, text_files.Text | token_files.Tokens):
        from trainmaster.data.labelled_samples import LabelledSource

        return LabelledSource(config.data.source, found, config.seed)
    assert isinstance(options, WindowOptions)
    shard = max(1, options.shard // model.context)
    windows = config.data.source, found, samples, model.context, model.vocabulary, shard, config.seed
    if asked == "MaskedTokens":
        from trainmaster.data.masked_windows import MaskedSource

        assert model.mask_token is not None
        return MaskedSource(*windows, model.mask_token, found.alphabet or model.vocabulary)
    from trainmaster.data.token_windows import WindowSource

    return WindowSource(*windows)
