"""The source `text`: windows of a folder of text files, as bytes.

Sample i holds the bytes i*T .. i*T+T of the long text: its first T are the inputs, its last T the targets. So each
byte but the first is predicted exactly once an epoch; the last window may be short, and is filled with targets that
don't count.
"""

from __future__ import annotations

import numpy as np
import torch

from trainmaster.data import IGNORED, Batch
from trainmaster.data.files import find, windows
from trainmaster.data.options import TextOptions
from trainmaster.data.order import Order
from trainmaster.data.skips import Skips


class TextSource:
    kind = "text"
    version = 1

    def __init__(self, path: str, options: TextOptions, context: int, global_batch: int, seed: int) -> None:
        self.text = find(path, options)
        self.context = context
        self.tokens = self.text.size - 1
        self.samples = windows(self.text, context, global_batch)
        self.order = Order(self.samples, max(1, options.shardBytes // context), seed)
        self.skips = Skips()

    @property
    def fingerprint(self) -> str:
        return self.text.fingerprint

    def batch(self, consumed: int, slots: range) -> Batch:
        assert slots.step == 1
        # int64 from the start: -100 marks what doesn't count.
        inputs = np.zeros((len(slots), self.context), np.int64)
        targets = np.full((len(slots), self.context), IGNORED, np.int64)
        valid = 0
        pieces = self.skips.pieces(consumed + slots.start, len(slots))
        samples = [sample for start, count in pieces for sample in self.order(start, count).tolist()]
        for row, sample in enumerate(samples):
            start = sample * self.context
            raw = self.text.read(start, min(start + self.context + 1, self.text.size))
            window = np.frombuffer(raw, np.uint8)
            length = len(window) - 1
            inputs[row, :length] = window[:-1]
            targets[row, :length] = window[1:]
            valid += length
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), valid)

    def valid_tokens(self, consumed: int, count: int) -> int:
        missing = self.samples * self.context - self.tokens
        if not missing:
            return count * self.context
        short = 0
        for start, here in self.skips.pieces(consumed, count):
            epochs = range(start // self.samples, (start + here - 1) // self.samples + 1)
            short += sum(start <= epoch * self.samples + self.order.last(epoch) < start + here for epoch in epochs)
        return count * self.context - short * missing

    def unigram_entropy(self) -> float:
        return self.text.unigram_entropy()
