"""The gradients of a step of our own loop: which samples this rank computes, in which micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from trainmaster import data, parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.data.prefetch import Prefetch
from trainmaster.data.source import Source
from trainmaster.parallel.blocks.loss_scale import LossScale
from trainmaster.parallel.forward_and_backward import Parallel
from trainmaster.train.async_transfer import to_device
from trainmaster.train.measures import memory_report
from trainmaster.train.measures.gradient_noise_scale import NoiseScale


class StepGradients:
    """Computes the gradients of one step after the other, for this rank's part of the batch."""

    def __init__(
        self,
        config: TrainingConfig,
        parallel: Parallel,
        source: Source,
        scale: LossScale,
        activations: memory_report.Activations,
        noise: NoiseScale | None,
        micro: int,
        accumulation: int,
    ) -> None:
        """`micro`: the samples of a micro-batch. `accumulation`: the number of micro-batches of a step."""
        self._config = config
        self._parallel = parallel
        self._source = source
        self._scale = scale
        self._activations = activations
        self._noise = noise
        self._micro = micro
        self._accumulation = accumulation
        self._prefetch = Prefetch(source)
        self._own_tokens = 0  # tokens that this rank counts in the current step
        self.first_squared: Tensor | None = None
        """The squared norm of the first micro-batch's gradient, if the gradient noise scale needs it in this step."""

    def compute(self, step: int, consumed: int, device: torch.device, *, is_first: bool) -> tuple[Tensor, int, int]:
        """Compute the gradients of a step, which are then sums over the ranks of an island.

        `consumed`: the samples before this step. `is_first`: whether it is the first step of this round.
        Return (this rank's summand of the step's loss, valid tokens of the whole step, tokens that this rank counts).
        """
        count = self._config.batch.global_
        tokens = share = self._source.valid_tokens(consumed, count)
        if self._config.outer is not None:
            count //= self._parallel.mesh.degree("island")
            island = self._parallel.mesh.coordinate("island")
            share = max(1, self._source.valid_tokens(consumed + island * count, count))
        self._own_tokens = 0
        divisor = self._scale.scaled(share)
        self._parallel.rng.begin(self._config.seed, step, self._slots())
        with self._activations.counted_once(is_first=is_first):
            batches = self._micro_batches(step, consumed, device)
            total = self._parallel.forward_backward(batches, self._accumulation, divisor)
        loss = self._scale.unscaled(total)
        return loss if share == tokens else loss * (share / tokens), tokens, self._own_tokens

    def _slots(self) -> range:
        """Return the positions in the batch of the first sequence of each of this rank's micro-batches."""
        share = self._micro * self._accumulation
        first = self._parallel.mesh.data_rank * share
        return range(first, first + share, self._micro)

    def _micro_batches(self, step: int, consumed: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's part of the step's samples as (tokens, targets) on its device."""
        slots = [range(first, first + self._micro) for first in self._slots()]
        asked, self.first_squared = self._noise is not None and self._noise.due(step), None
        batches = self._prefetch.batches(consumed, slots, consumed + self._config.batch.global_)
        for index, batch in enumerate(batches):
            if asked and index == 1:
                # The first one's backward pass is over, and no other has begun.
                self.first_squared = parallel.gradient_norm_squared(self._parallel.model)
            inputs, targets = self._parallel.own(batch.inputs), self._parallel.own(batch.targets)
            if self._parallel.mesh.counts_tokens:
                whole = targets.shape == batch.targets.shape
                self._own_tokens += batch.valid_tokens if whole else int((targets != data.IGNORED).sum())
            yield to_device(inputs, device), to_device(targets, device)
