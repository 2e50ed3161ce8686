"""Data sources whose order is a pure function of (seed, samples consumed, slot of the batch).

A batch of a step has as many slots as `batch.global`; slot s of a step that starts after `consumed` samples holds
sample `consumed + s` of the endless sequence of epochs. So any world size sees the same samples, and one integer
resumes it. Positions that are left out (`skips`) are passed over. Importing this package imports neither torch nor
numpy; `build` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trainmaster.contract.config import DataConfig, TrainingConfig
from trainmaster.data.options import TextOptions
from trainmaster.data.skips import Skips
from trainmaster.errors import ConfigError, unknown
from trainmaster.models import validate as validate_model
from trainmaster.options import read

if TYPE_CHECKING:
    from torch import Tensor

SOURCES = {"text": TextOptions}
IGNORED = -100  # a target that doesn't count: torch's own default of `ignore_index`


@dataclass(frozen=True)
class Batch:
    inputs: Tensor  # [n, T] int64
    targets: Tensor  # [n, T] int64; IGNORED where there is nothing to predict
    valid_tokens: int  # targets that count


class Source(Protocol):
    kind: str
    version: int  # of the order: a checkpoint's cursor means something else under another version
    tokens: int  # targets of one epoch
    samples: int  # samples of one epoch
    skips: Skips  # positions that no batch takes

    @property
    def fingerprint(self) -> str:
        """Changes when the data does."""
        ...

    def batch(self, consumed: int, slots: range) -> Batch: ...

    def valid_tokens(self, consumed: int, count: int) -> int:
        """Targets that count in the samples consumed..consumed+count: the divisor of the step's loss."""
        ...

    def unigram_entropy(self) -> float:
        """Nats per token of the text's own byte frequencies: the loss of a model that sees no context."""
        ...


def validate(config: DataConfig) -> TextOptions:
    """The source's options, checked. Raises ConfigError in words."""
    if config.source not in SOURCES:
        raise ConfigError(unknown("data.source", config.source, SOURCES))
    return read(SOURCES[config.source], config.options, "data.options")


def build(config: TrainingConfig) -> Source:
    """The source of `config.data`. Raises ConfigError, or DataError for data that can't fill a global batch."""
    options = validate(config.data)
    from trainmaster.data.text import TextSource

    return TextSource(
        config.data.path, options, validate_model(config.model).context, config.batch.global_, config.seed
    )
