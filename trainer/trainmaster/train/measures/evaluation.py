"""Evaluations: the loss of the model on data that it is not trained on, each time on the same sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from trainmaster.contract.config import EvaluationConfig, TrainingConfig
from trainmaster.data import IGNORED, heldout_samples
from trainmaster.parallel import Parallel
from trainmaster.parallel.collectives import all_reduce_
from trainmaster.train.async_transfer import to_device
from trainmaster.train.measures.early_stopping import Scores


class Evaluation:
    """The evaluations of a run. A rank computes `rows` sequences at once."""

    def __init__(
        self,
        config: TrainingConfig,
        evaluation: EvaluationConfig,
        rows: int,
        folder: Path | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the data, and count its tokens: in `folder` it is kept how many there are, and `beat` is called while
        they are counted. Raises ConfigError if it is not fit for evaluations."""
        self.source, self.samples = heldout_samples.build(config, evaluation, folder, beat)
        self.tokens = self.source.valid_tokens(0, self.samples)
        of = f"{self.samples} of {self.source.fingerprint}"
        self.scores = Scores(of, evaluation.stop, keep_best=config.checkpoint.keepBest)
        self._rows = rows

    def loss(self, parallel: Parallel, device: torch.device, beat: Callable[[], None]) -> float:
        """Return the mean loss over all tokens, with the same bits on all ranks. `beat` is called after each part."""
        mesh = parallel.mesh
        total = torch.zeros((), dtype=torch.float64, device=device)
        parallel.model.eval()
        try:
            for tokens, targets in self._parts(mesh.data_rank, mesh.data_ranks):
                own = to_device(parallel.own(tokens), device), to_device(parallel.own(targets), device)
                total += parallel.evaluate(*own).double()
                total.item()  # so that a beat tells of a pass that is done
                beat()
        finally:
            parallel.model.train()
            parallel.evaluated()
        all_reduce_(total)
        return float(total.item()) / self.tokens

    def _parts(self, data_rank: int, data_ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs and targets, [rows, …], of this rank.

        All ranks get the same number of parts, because they compute together.
        """
        for start in range(0, self.samples, self._rows * data_ranks):
            first = min(start + self._rows * data_rank, self.samples)
            batch = self.source.batch(0, range(first, min(first + self._rows, self.samples)))
            missing = self._rows - len(batch.targets)
            yield _longer(batch.inputs, missing, 0), _longer(batch.targets, missing, IGNORED)


def _longer(rows: Tensor, by: int, value: int) -> Tensor:
    return pad(rows, (0, 0) * (rows.dim() - 1) + (0, by), value=value)
