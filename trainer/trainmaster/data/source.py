"""The interface of every data source, and its batches. It imports neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trainmaster.data.skipped_samples import Skips

if TYPE_CHECKING:
    from torch import Tensor

    from trainmaster.data.sample_order import Order

IGNORED = -100  # a target that doesn't count: torch's own default of `ignore_index`


@dataclass(frozen=True)
class Batch:
    """The samples of one rank for one micro-batch."""

    inputs: Tensor  # [n, T] int64
    targets: Tensor  # [n, T] int64; IGNORED where there is nothing to predict
    valid_tokens: int  # targets that count


class Source(Protocol):
    """The interface of a data source."""

    kind: str
    version: int  # of the order: a checkpoint's cursor means something else under another version
    tokens: int  # targets of one epoch
    samples: int  # samples of one epoch
    order: Order  # of these samples
    skips: Skips  # positions that no batch takes

    @property
    def fingerprint(self) -> str:
        """Return a text that changes when the data changes."""
        ...

    def batch(self, consumed: int, slots: range) -> Batch: ...

    def valid_tokens(self, consumed: int, count: int) -> int:
        """Return the number of targets that count in the samples consumed..consumed+count: the divisor of a step's
        loss."""
        ...
