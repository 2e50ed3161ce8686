"""What every data source is to the rest of the trainer, and what a batch of it is. Imports neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trainmaster.data.skips import Skips

if TYPE_CHECKING:
    from torch import Tensor

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
