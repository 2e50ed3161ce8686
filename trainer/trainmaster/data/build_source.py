"""Builds the source of a config: its data, in the order in which samples are taken. Only the call imports numpy."""

from __future__ import annotations

from trainmaster.contract.config import TrainingConfig
from trainmaster.data import text_files, token_files
from trainmaster.data.data_fits_batch_and_model import check, objective
from trainmaster.data.data_sources import find, validate
from trainmaster.data.source import Source
from trainmaster.data.source_options import WindowOptions
from trainmaster.models import facts as facts_of


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
