"""The forward and backward passes of a step, whatever the mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainmaster.parallel.context_parallel import Chunks
from trainmaster.parallel.forward_rng import ForwardRng
from trainmaster.parallel.gradient_reduction import GradientSync
from trainmaster.parallel.mesh import Mesh

if TYPE_CHECKING:
    from trainmaster.parallel.stages.pipeline import Pipeline
    from trainmaster.reduce.compressed_reducer import Reducer


class Parallel:
    """A model that is divided among ranks. `tm.parallelize()` returns it.

    - `model`: the part of the model that this rank trains. Its parameters are DTensors, or plain tensors where this
      rank has them whole. Each gradient is the sum over all ranks. In a pipeline it lacks the stages of other ranks.
    - `mesh`: which rank has which part of the model and of the batch.
    - `rng`: the random numbers of forward passes.
    - `stages`: the stages of a pipeline as a table for people.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: Mesh,
        sync: GradientSync,
        rng: ForwardRng,
        chunks: Chunks | None,
        loss: Callable[[Tensor, Tensor], Tensor],
        auxiliary: list[Any],
    ) -> None:
        """`loss(logits, targets)` returns the cross entropy, summed over this rank's tokens."""
        self.model, self.mesh, self.sync, self.rng = model, mesh, sync, rng
        self.pipeline: Pipeline | None = None
        self.stages = ""
        self._chunks, self._loss, self._auxiliary = chunks, loss, auxiliary
        self._counts = mesh.coordinate("tp") == 0  # the ranks of a tp group compute the same losses
        for module in auxiliary:
            module.share = self._counts / (mesh.island_data_ranks * mesh.degree("cp"))
        self._positions: dict[tuple[int, torch.device], Tensor] = {}
        self._divisor: float | Tensor = 1.0

    def own(self, x: Tensor) -> Tensor:
        """Return this rank's part of the sequences x [B, T], as [B, T / cp]."""
        if self._chunks is None:
            return x
        return x[:, self._own_positions(x.shape[1] // self.mesh.degree("cp"), x.device)]

    def forward(self, tokens: Tensor, divisor: float | Tensor | None = None) -> Tensor:
        """Return the logits of this rank's own tokens, for its part of the vocabulary.

        `divisor`: the number of tokens of the whole step. Losses that the model itself adds (`Plan.auxiliary`) are
        divided by it. Without it, they are means over the tokens that all ranks have in this pass. Each rank must have
        the same number then, and a step with several passes adds the mean of each.

        It can't be called in a pipeline, which computes all micro-batches of a step together.
        """
        assert self.pipeline is None, "a pipeline computes whole steps only"
        self._divide_auxiliary(divisor)
        if self._chunks is None:
            return self.model(tokens)
        return self.model(tokens, self._own_positions(tokens.shape[1], tokens.device))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy, summed over this rank's tokens."""
        return self._loss(logits, targets)

    def summand(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return this rank's summand of the loss of the current step: its `loss`, divided by the step's divisor."""
        return self.loss(logits, targets) / self._divisor

    def forward_backward(self, batches: Iterable[tuple[Tensor, Tensor]], count: int, divisor: float | Tensor) -> Tensor:
        """Compute a step's forward and backward passes, and return this rank's summand of its loss, a scalar.

        - `batches`: the micro-batches, as pairs of tokens and targets, each of them this rank's `own` part.
        - `count`: the number of micro-batches.
        - `divisor`: the number of tokens of the whole step that count in the loss.

        After the call, each gradient is the sum over all ranks.
        """
        self._divisor = divisor
        if self.pipeline is not None:
            self._divide_auxiliary(divisor)
            tokens, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
            self.sync.before_pipeline()
            total = self.pipeline.forward_backward(tokens, targets, self._own_positions(tokens.shape[1], tokens.device))
            self.sync.after_pipeline()
        else:
            # Where the loss is computed: with sharding.offload parameters lie elsewhere.
            losses: list[Tensor] = []
            for index, (tokens, targets) in enumerate(batches):
                self.sync.before(last=index == count - 1)
                loss = self.summand(self.forward(tokens, divisor), targets)
                loss.backward()
                losses.append(loss.detach())
            total = sum(losses[1:], losses[0])
        self._divide_auxiliary(None)
        self.sum_gradients()
        return total if self._counts else total * 0.0

    def evaluate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return this rank's summand of the loss of some sequences, a scalar, without gradients.

        tokens and targets are this rank's `own` parts. A pipeline takes as many sequences as a step has. Call
        `evaluated` after the last call.
        """
        with torch.no_grad():
            if self.pipeline is not None:
                self._divisor = 1.0
                total = self.pipeline.forward(tokens, targets, self._own_positions(tokens.shape[1], tokens.device))
            else:
                total = self.loss(self.forward(tokens), targets)
        return total if self._counts else total * 0.0

    def evaluated(self) -> None:
        """Release the parameters that forward passes have gathered; after a step the backward pass does that."""
        self.sync.reshard()

    @property
    def reducer(self) -> Reducer | None:
        """Return what sums compressed gradients, or None without compression."""
        return self.sync.reducer

    def sum_gradients(self) -> None:
        """Sum the gradients over the ranks. `forward_backward` does it; call it after backward passes of your own."""
        self.sync.after()

    def completed(self) -> None:
        """Call it after the optimizer's step, so that the state of the compression becomes that of the next step."""
        if self.reducer is not None:
            self.reducer.completed()

    def _divide_auxiliary(self, divisor: float | Tensor | None) -> None:
        """Let the model's own losses be divided by `divisor`. None: by the tokens of all ranks in a pass."""
        scale = None if divisor is None else 1 / divisor if self._counts else 0.0
        for module in self._auxiliary:
            module.scale = scale

    def _own_positions(self, time: int, device: torch.device) -> Tensor:
        """Return the positions of the `time` tokens, T / cp, that this rank has of each sequence, int64 [time]."""
        if (time, device) not in self._positions:
            positions = torch.arange(time)
            if self._chunks is not None:
                positions = self._chunks.positions(self.mesh.coordinate("cp"), time * self.mesh.degree("cp"))
            self._positions[time, device] = positions.to(device)
        return self._positions[time, device]
