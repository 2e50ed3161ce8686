"""One rank's run of a row, and what all ranks' runs come to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trainmaster import compiling, data, models, parallel
from trainmaster.checkpoint.save import local_pieces
from trainmaster.contract.config import OptimizerConfig, TrainingConfig
from trainmaster.models.layers import AuxiliaryLoss
from trainmaster.models.moe import MoE
from trainmaster.optimizer import ShardOptimizer
from trainmaster.parallel.own_loop import parallelize
from trainmaster.parity.rows import CONTEXT, Row
from trainmaster.precision import LossScale

CHECKSUMS = 2**61 - 1
RATE = 0.1  # of learning

Part = tuple[str, list[int], list[int], Any]
"""(name, offset, shape of the whole, block) of a parameter, in elements."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind: its losses, and its parameters before the first and after the last step.

    The parameters of a rank are a list of parts, those of all ranks whole arrays by name.
    """

    losses: list[float]
    before: Any
    after: Any
    choices: dict[str, int] = field(default_factory=dict)
    """Of each layer with experts: a checksum of which token chose which, in all steps."""


def train(config: TrainingConfig, row: Row, rank: int) -> Outcome:
    """One rank's run. Without an axis the model is plain, and no process group is touched; with devices neither."""
    source = data.build(config)
    model = models.build(config.model, config.seed)
    degrees = row.config.resolve(row.ranks) if not row.devices else {"dp_replicate": 1, "dp_shard": 1}
    share = config.batch.global_ // (degrees["dp_replicate"] * degrees["dp_shard"])
    micro = share // row.accumulation
    spread: parallel.Parallel | None = None
    own: Any = None  # the model, over ranks or over devices
    if row.devices:
        own = parallelize(model, row.parallelism, devices=["cpu"] * row.devices, sequence=CONTEXT)
    elif row.parallelism:
        shape = parallel.StepShape(CONTEXT, micro, row.accumulation)
        if config.compile:
            compiling.prepare("cpu", None)
        own = spread = parallel.parallelize(
            model,
            degrees,
            config.parallelism,
            config.precision,
            "cpu",
            shape,
            recomputed=config.recompute,
            communication=config.communication,
            compiled=config.compile,
        )
    # Its updates are as large as gradients are, which shows a wrong scale of these.
    sgd = OptimizerConfig(name="sgd", lr=RATE, momentum=0.9, weightDecay=0.0)
    how = config.optimizer if "optimizer" in row.training else sgd
    optimizer = ShardOptimizer(model, how, config.precision)
    scale = LossScale(config.precision, "cpu")
    before = parts(model)
    choices = Choices(model, micro // row.parallelism.get("dp_replicate", 1) if row.devices else micro)
    losses = []
    for step in range(config.steps):
        consumed = step * config.batch.global_
        divisor = source.valid_tokens(consumed, config.batch.global_)
        first = (spread.mesh.data_rank if spread else 0) * share
        positions = torch.arange(CONTEXT).unsqueeze(0)
        choices.begin(first + consumed, (spread.own(positions) if spread else positions)[0])
        batches = [
            source.batch(consumed, range(first + i * micro, first + (i + 1) * micro)) for i in range(row.accumulation)
        ]
        if own is not None:
            parts_of = [(own.own(batch.inputs), own.own(batch.targets)) for batch in batches]
            total = scale.unscaled(own.forward_backward(parts_of, row.accumulation, scale.scaled(divisor)))
        else:
            (batch,) = batches
            for module in model.modules():
                if isinstance(module, AuxiliaryLoss):
                    module.scale = 1 / divisor
            loss = parallel.cross_entropy(model(batch.inputs), batch.targets) / divisor
            loss.backward()
            total = loss.detach()
        totals = torch.stack([total, parallel.gradient_norm_squared(model)])
        if spread is not None:
            dist.all_reduce(totals)
        # Clipped on some steps and not on others, so that a wrong norm shows too.
        norm = scale.unscaled(totals[1].sqrt())
        factor = scale.unscaled((1.5 / norm).clamp(max=1.0))
        if optimizer.joins:
            optimizer.orthogonalize(factor)
        parallel.scale_gradients_(model, factor)
        dropped = scale.overflowed(norm)
        optimizer.step(how.lr, dropped)
        scale.update(dropped)
        if spread is not None:
            spread.completed()
        losses.append(totals[0].item())
    speaks = spread is None or spread.mesh.coordinate("tp") == 0
    return Outcome(losses, before, parts(model), choices.sums if speaks else {})


class Choices:
    """Sums up which experts each token chose. Independent of the order of tokens, and of where they are."""

    def __init__(self, model: torch.nn.Module, micro: int) -> None:
        self.sums: dict[str, int] = {}
        self._micro = micro
        self._calls: dict[str, int] = {}
        for name, module in model.named_modules():
            if isinstance(module, MoE):
                module.register_forward_hook(lambda moe, inputs, output, name=name: self._heard(name, moe))

    def begin(self, first: int, positions: torch.Tensor) -> None:
        """A step whose first sample, of this rank, is `first`; of each sample there are the tokens at `positions`."""
        self._first, self._positions, self._calls = first, positions.numpy().astype(object), {}

    def _heard(self, name: str, moe: MoE) -> None:
        assert moe.last_choices is not None
        chosen = (moe.last_choices.numpy().astype(object) + 1) ** 3
        call = self._calls[name] = self._calls.get(name, -1) + 1  # stages see micro-batches in their order
        samples = np.arange(self._micro, dtype=object) + self._first + call * self._micro
        tokens = samples[:, None] * CONTEXT + self._positions[None, :] + 1
        self.sums[name] = (self.sums.get(name, 0) + int((tokens * tokens * chosen.sum(-1)).sum())) % CHECKSUMS


def parts(model: torch.nn.Module) -> list[Part]:
    """What this rank holds of each parameter, copied."""
    return [
        (piece.name, piece.offset, piece.whole, piece.data.detach().numpy().copy())
        for name, parameter in model.named_parameters()
        for piece in local_pieces(name, parameter)
    ]


def whole(parts: Iterable[Part]) -> dict[str, Any]:
    """Whole parameters by name. What several ranks hold must be the same on all of them."""
    found: dict[str, Any] = {}
    for name, offset, shape, block in parts:
        if name not in found:
            found[name] = np.full(shape, np.nan, block.dtype)
        place = found[name][tuple(slice(o, o + n) for o, n in zip(offset, block.shape, strict=True))]
        differ = ~np.isnan(place) & (place != block)
        place[...] = np.where(differ, np.nan, block)  # which passes no comparison
    return found


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Of all ranks. Losses that aren't the same on all of them are none."""
    losses = [each[0] if len({*each}) == 1 else math.nan for each in zip(*(o.losses for o in outcomes), strict=True)]
    before = whole(part for outcome in outcomes for part in outcome.before)
    after = whole(part for outcome in outcomes for part in outcome.after)
    choices: dict[str, int] = {}
    for name, number in (item for outcome in outcomes for item in outcome.choices.items()):
        choices[name] = (choices.get(name, 0) + number) % CHECKSUMS
    return Outcome(losses, before, after, choices)
