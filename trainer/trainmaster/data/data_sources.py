"""The built-in data sources by name: the check of their options, and the data that they open. It imports neither torch
nor numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.contract.config import DataConfig
from trainmaster.data import text_files, token_files
from trainmaster.data.sequence import Sequence
from trainmaster.data.source_options import LabelledOptions, TableOptions, TextOptions, TokenOptions, WindowOptions
from trainmaster.errors import ConfigError, unknown
from trainmaster.models.strict_options import read

if TYPE_CHECKING:
    from trainmaster.data.labelled_samples import Labelled

SOURCES: dict[str, type[WindowOptions | LabelledOptions]] = {
    "text": TextOptions,
    "tokens": TokenOptions,
    "parquet": TableOptions,
    "huggingface": TableOptions,
    "images": LabelledOptions,
    "arrays": LabelledOptions,
}


def validate(config: DataConfig) -> WindowOptions | LabelledOptions:
    """Return the source's options. Raises ConfigError, in a sentence, for a source or an option that is not known."""
    if config.source not in SOURCES:
        raise ConfigError(unknown("data.source", config.source, SOURCES))
    return read(SOURCES[config.source], config.options, "data.options")


def find(config: DataConfig) -> Sequence | Labelled:
    """Return the data that samples are taken from. Raises ConfigError for the options, and DataError for missing
    data."""
    options = validate(config)
    if isinstance(options, LabelledOptions):
        from trainmaster.data import labelled_samples

        return labelled_samples.find(config.source, config.path)
    if isinstance(options, TokenOptions):
        return token_files.find(config.path, options)
    if isinstance(options, TableOptions):
        from trainmaster.data.tables import table_sequences

        return table_sequences.find(config.source, config.path, options)
    assert isinstance(options, TextOptions)
    return text_files.find(config.path, options)
