"""Windows in which some tokens are masked: the training data of an encoder.

Sample i holds the tokens i*T .. i*T+T of the sequence. Of a window of n tokens, round(0.15 n), and at least one, are to
be predicted. About 80 % of these are masked, 10 % are replaced by a random token, and 10 % are unchanged (Devlin et
al., arXiv 1810.04805, section 3.1). Which ones is a function of the seed and of the sample's position in the endless
sequence of epochs: the same on every rank and after every restart, and different in each epoch (as in RoBERTa, arXiv
1907.11692).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from trainmaster.data.sequence import Sequence
from trainmaster.data.source import Batch
from trainmaster.data.token_windows import WindowSource

SHARE = 0.15  # of the tokens, to be told
MASKED, RANDOM = 0.8, 0.1  # of these


class MaskedSource(WindowSource):
    """A source of masked windows. `mask` is the number of [MASK]; random tokens are below `alphabet`."""

    ahead = 0

    def __init__(
        self,
        kind: str,
        sequence: Sequence,
        samples: int,
        context: int,
        vocabulary: int,
        shard: int,
        seed: int,
        mask: int,
        alphabet: int,
    ) -> None:
        super().__init__(f"{kind}/masked", sequence, samples, context, vocabulary, shard, seed)
        self._seed, self._mask, self._alphabet = seed, mask, alphabet

    def batch(self, consumed: int, slots: range) -> Batch:
        """Return the batch of these slots. Raises DataError for a token that the model does not know."""
        inputs, targets = self._empty(len(slots))
        valid = 0
        for row, (position, sample) in enumerate(self._samples(consumed, slots)):
            window = self._window(sample)
            places, tokens = self.masked(position, window)
            inputs[row, : len(window)] = window
            inputs[row, places] = tokens
            targets[row, places] = window[places]
            valid += len(places)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), valid)

    def masked(self, position: int, window: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (places [k] whose tokens are to be predicted, the tokens [k] that the model sees there)."""
        n, k = len(window), counted(len(window))
        # Raw numbers alone: what numpy makes of them may change with its version (NEP 19), these may not.
        numbers = np.random.Philox(key=np.array([self._seed, position], np.uint64)).random_raw(n + 2 * k)
        places = np.argsort(numbers[:n], kind="stable")[:k].astype(np.int64)
        draw = numbers[n : n + k] / 2.0**64
        # Tokens are far fewer than 2^64: the remainder prefers none that anyone could notice.
        other = (numbers[n + k :] % np.uint64(self._alphabet)).astype(np.int64)
        kept = window[places].astype(np.int64)
        return places, np.where(draw < MASKED, self._mask, np.where(draw < MASKED + RANDOM, other, kept))

    def _counted(self, tokens: int) -> int:
        return counted(tokens)


def counted(tokens: int) -> int:
    """Return how many tokens of a window of `tokens` tokens are to be predicted."""
    return max(1, round(SHARE * tokens))
