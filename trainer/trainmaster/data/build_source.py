"""Builds the source of a config: its data, in the order in which samples are taken. Only the call imports numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.contract.config import TrainingConfig
from trainmaster.data.data_fits_batch_and_model import check, objective
from trainmaster.data.data_sources import find, validate
from trainmaster.data.sequence import Sequence
from trainmaster.data.source import Source
from trainmaster.data.source_options import WindowOptions
from trainmaster.models import facts as facts_of

if TYPE_CHECKING:
    from trainmaster.data.labelled_samples import Labelled


def build(config: TrainingConfig, folder: Path | None = None, beat: Callable[[], None] = lambda: None) -> Source:
    """Return the source of `config.data`. `folder` and `beat`: as for `Sequence.count`. Raises ConfigError, and
    DataError for data that cannot fill a global batch."""
    objective(config)
    found = find(config.data)
    if isinstance(found, Sequence) and not found.counted:
        check(config, found)
        found.count(folder, beat)
    return build_of(config, found)


def build_of(config: TrainingConfig, found: Sequence | Labelled) -> Source:
    """Return the source of data that was found and counted. Raises ConfigError and DataError."""
    options, model = validate(config.data), facts_of(config.model)
    samples = check(config, found)
    if not isinstance(found, Sequence):
        from trainmaster.data.labelled_samples import LabelledSource

        return LabelledSource(config.data.source, found, config.seed)
    assert isinstance(options, WindowOptions)
    shard = max(1, options.shard // model.context)
    windows = config.data.source, found, samples, model.context, model.vocabulary, shard, config.seed
    if objective(config) == "MaskedTokens":
        from trainmaster.data.masked_windows import MaskedSource

        assert model.mask_token is not None
        return MaskedSource(*windows, model.mask_token, found.alphabet or model.vocabulary)
    from trainmaster.data.token_windows import WindowSource

    return WindowSource(*windows)
