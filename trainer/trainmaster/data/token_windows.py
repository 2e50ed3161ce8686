"""Windows of a long sequence of tokens: the training data of a language model.

Sample i holds the tokens i*T .. i*T+T of the sequence: its first T tokens are the inputs, its last T the targets. So
each token except the first is predicted exactly once per epoch. The last window may be short; it is filled up with
targets that do not count.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from trainmaster.data.sample_order import Order
from trainmaster.data.sequence import Sequence
from trainmaster.data.skipped_samples import Skips
from trainmaster.data.source import IGNORED, Batch
from trainmaster.errors import DataError


class WindowSource:
    """A source of windows. `kind` is the kind of the source; windows are shuffled within shards of `shard` windows."""

    version = 1
    ahead = 1  # tokens after a window, which it tells

    def __init__(
        self, kind: str, sequence: Sequence, samples: int, context: int, vocabulary: int, shard: int, seed: int
    ) -> None:
        self.kind, self.sequence, self.context, self.samples = kind, sequence, context, samples
        self.tokens = sequence.size - self.ahead
        self.order = Order(samples, shard, seed)
        self.skips = Skips()
        self._vocabulary, self._dtype = vocabulary, np.dtype(sequence.dtype)
        span = np.iinfo(self._dtype)
        self._checked = span.min < 0 or span.max >= vocabulary  # bytes can't be outside of a vocabulary of 256

    @property
    def fingerprint(self) -> str:
        return self.sequence.fingerprint

    def batch(self, consumed: int, slots: range) -> Batch:
        """Return the batch of these slots. Raises DataError for a token that the model does not know."""
        inputs, targets = self._empty(len(slots))
        valid = 0
        for row, (_, sample) in enumerate(self._samples(consumed, slots)):
            window = self._window(sample)
            length = len(window) - 1
            inputs[row, :length] = window[:-1]
            targets[row, :length] = window[1:]
            valid += length
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), valid)

    def _empty(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return inputs and targets of `count` samples, in which no target counts."""
        # int64 from the start: -100 marks what doesn't count.
        shape = count, self.context
        return np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)

    def _samples(self, consumed: int, slots: range) -> Iterator[tuple[int, int]]:
        """Yield (position in the order, sample) of each slot."""
        assert slots.step == 1
        for start, count in self.skips.pieces(consumed + slots.start, len(slots)):
            yield from zip(range(start, start + count), self.order(start, count).tolist(), strict=True)

    def _window(self, sample: int) -> NDArray[np.integer]:
        """Return the tokens of a sample, and the `ahead` tokens after it. Raises DataError for a token out of range."""
        start = sample * self.context
        raw = self.sequence.read(start, min(start + self.context + self.ahead, self.sequence.size))
        window = np.frombuffer(raw, self._dtype)
        for number in (int(window.min()), int(window.max())) if self._checked else ():
            if not 0 <= number < self._vocabulary:
                raise DataError(self.sequence.outside(number, self._vocabulary))
        return window

    def _counted(self, tokens: int) -> int:
        """Return how many targets count in a window of `tokens` tokens, which do not contain those ahead."""
        return tokens

    def valid_tokens(self, consumed: int, count: int) -> int:
        whole, missing = self._counted(self.context), self.samples * self.context - self.tokens
        if not missing:
            return count * whole
        short = 0
        for start, here in self.skips.pieces(consumed, count):
            epochs = range(start // self.samples, (start + here - 1) // self.samples + 1)
            short += sum(start <= epoch * self.samples + self.order.last(epoch) < start + here for epoch in epochs)
        return count * whole - short * (whole - self._counted(self.context - missing))
