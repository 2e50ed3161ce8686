"""The run of one rank of a row, and the result of all ranks' runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trainmaster import data, models, parallel
from trainmaster.checkpoint.state.save_shares import local_pieces
from trainmaster.contract.config import OptimizerConfig, TrainingConfig
from trainmaster.models.layers import AuxiliaryLoss
from trainmaster.models.moe_router_and_balance import MoE
from trainmaster.optim.optimizer import ShardOptimizer
from trainmaster.parallel.blocks.loss_scale import LossScale
from trainmaster.parallel.collectives import all_reduce_
from trainmaster.parallel.parallelize_user_module import parallelize
from trainmaster.reduce.diloco_islands import Outer, fragments_of
from trainmaster.tools.parity.example import CONTEXT
from trainmaster.tools.parity.rows import Row

CHECKSUMS = 2**61 - 1
RATE = 0.1  # of learning

Part = tuple[str, list[int], list[int], Any]
"""(name, offset, shape of the whole, block) of a parameter, in elements."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run: its losses, and its parameters before the first and after the last step.

    The parameters of a rank are a list of parts; those of all ranks are whole arrays by name.
    """

    losses: list[float]
    before: Any
    after: Any
    choices: dict[str, int] = field(default_factory=dict)
    """A checksum for each layer with experts: which token chose which expert, in all steps."""


def train(config: TrainingConfig, row: Row, rank: int, device: str = "cpu") -> Outcome:
    """Run one rank, and return its outcome.

    Without an axis, or with devices, the model is plain and no process group is used. `device` is where the rank
    computes; all ranks may have the same one. Rows with devices of their own compute on the CPU.
    """
    if row.islands:
        return in_turn(config, row.islands, device)
    source = data.build(config)
    model = models.build(config.model, config.seed, device)
    degrees = row.config.resolve(row.ranks) if not row.devices else {"dpReplicate": 1, "dpShard": 1}
    share = config.batch.global_ // (degrees.get("island", 1) * degrees["dpReplicate"] * degrees["dpShard"])
    micro = share // row.accumulation
    spread: parallel.Parallel | None = None
    own: Any = None  # the model, over ranks or over devices
    if row.devices:
        own = parallelize(model, row.parallelism, devices=["cpu"] * row.devices, sequence=CONTEXT)
    elif row.parallelism:
        shape = parallel.StepShape(CONTEXT, micro, row.accumulation)
        own = spread = parallel.of_job(model, config, row.ranks, device, shape)
    # Its updates are as large as gradients are, which shows a wrong scale of these.
    sgd = OptimizerConfig(name="sgd", lr=RATE, momentum=0.9, weightDecay=0.0)
    how = config.optimizer if "optimizer" in row.training else sgd
    optimizer = ShardOptimizer(model, how, config.precision)
    scale = LossScale(config.precision, device)
    outer = Outer(model, spread.mesh, config.outer, config.steps) if spread and config.outer else None
    islands, island = (spread.mesh.degree("island"), spread.mesh.coordinate("island")) if spread else (1, 0)
    before = parts(model)
    choices = Choices(model, micro // row.parallelism.get("dpReplicate", 1) if row.devices else micro)
    losses = []
    for step in range(config.steps):
        consumed, count = step * config.batch.global_, config.batch.global_ // islands
        divisor = source.valid_tokens(consumed + island * count, count)
        if outer is not None:
            outer.begin(step + 1)
        first = (spread.mesh.data_rank if spread else 0) * share
        positions = torch.arange(CONTEXT).unsqueeze(0)
        choices.begin(first + consumed, (spread.own(positions) if spread else positions)[0])
        batches = [
            source.batch(consumed, range(first + i * micro, first + (i + 1) * micro)) for i in range(row.accumulation)
        ]
        if own is not None:
            parts_of = [(own.own(batch.inputs).to(device), own.own(batch.targets).to(device)) for batch in batches]
            total = scale.unscaled(own.forward_backward(parts_of, row.accumulation, scale.scaled(divisor)))
        else:
            (batch,) = batches
            for module in model.modules():
                if isinstance(module, AuxiliaryLoss):
                    module.scale = 1 / divisor
            loss = parallel.cross_entropy(model(batch.inputs.to(device)), batch.targets.to(device)) / divisor
            loss.backward()
            total = loss.detach()
        if outer is not None:
            outer.wait()
            total = total * (divisor / source.valid_tokens(consumed, config.batch.global_))
        totals = torch.zeros(1 + islands, device=device)
        totals[0], totals[1 + island] = total, parallel.gradient_norm_squared(model)
        if spread is not None:
            all_reduce_(totals)
        norm = scale.unscaled(totals[1 + island].sqrt())
        factor = scale.unscaled(_factor(norm, step))
        if optimizer.joins:
            optimizer.orthogonalize(factor)
        parallel.scale_gradients_(model, factor)
        dropped = scale.overflowed(norm)
        optimizer.step(how.lr, dropped)
        scale.update(dropped)
        if spread is not None:
            spread.completed()
        if outer is not None:
            outer.completed(step + 1)
        losses.append(totals[0].item())
    counts = spread is None or spread.mesh.coordinate("tp") == 0
    return Outcome(losses, before, parts(model), choices.sums if counts else {})


def in_turn(config: TrainingConfig, count: int, device: str = "cpu") -> Outcome:
    """Train islands, each a plain model, one after the other, with torch's own SGD as the outer optimizer."""
    assert config.outer is not None
    source, every = data.build(config), config.outer.every
    worlds = [models.build(config.model, config.seed, device) for _ in range(count)]
    inner = [torch.optim.SGD(world.parameters(), lr=RATE, momentum=0.9) for world in worlds]
    common = [p.detach().clone() for p in worlds[0].parameters()]
    momentum = config.outer.momentum
    outer = torch.optim.SGD(common, config.outer.lr, momentum, nesterov=config.outer.nesterov and momentum > 0)
    fragments = fragments_of([p.numel() for p in common], config.outer.fragments)
    before, losses = parts(worlds[0]), []
    for step in range(config.steps):
        last, consumed = step + 1 == config.steps, step * config.batch.global_
        due = [
            index
            for turn, members in enumerate(fragments)
            if last or (step and step % every == turn * every // len(fragments))
            for index in members
        ]
        began = [[p.detach().clone() for p in world.parameters()] for world in worlds]
        whole, share, total = source.valid_tokens(consumed, config.batch.global_), config.batch.global_ // count, 0.0
        for island, (world, sgd) in enumerate(zip(worlds, inner, strict=True)):
            batch = source.batch(consumed, range(island * share, (island + 1) * share))
            loss = parallel.cross_entropy(world(batch.inputs.to(device)), batch.targets.to(device))
            (loss / source.valid_tokens(consumed + island * share, share)).backward()
            gradients = [p.grad for p in world.parameters() if p.grad is not None]
            torch._foreach_mul_(gradients, _factor(torch.stack(torch._foreach_norm(gradients)).norm(), step))
            sgd.step()
            sgd.zero_grad()
            total += loss.item() / whole
        losses.append(total)
        old = [p.clone() for p in common]
        for index in due:
            common[index].grad = common[index] - torch.stack([parameters[index] for parameters in began]).mean(0)
        outer.step()
        outer.zero_grad()
        with torch.no_grad():
            for world, parameters in zip(worlds, began, strict=True):
                own = [*world.parameters()]
                for index in due:
                    learned = 0.0 if last else own[index] - parameters[index]
                    own[index].copy_(common[index] + learned)
        assert all(torch.equal(a, b) for i, (a, b) in enumerate(zip(old, common, strict=True)) if i not in due)
    return Outcome(losses, before, parts(worlds[0]))


def _factor(norm: torch.Tensor, step: int) -> torch.Tensor:
    """Return the factor of gradients: 1 / norm in every other step, so that a wrong norm shows, and 1 in the others.

    In the others, a wrong scale of the gradients shows.
    """
    return 1.0 / norm if step % 2 else torch.ones_like(norm)


class Choices:
    """Sums of the experts that each token chose. They do not depend on the order or the place of tokens."""

    def __init__(self, model: torch.nn.Module, micro: int) -> None:
        self.sums: dict[str, int] = {}
        self._micro = micro
        self._calls: dict[str, int] = {}
        for name, module in model.named_modules():
            if isinstance(module, MoE):
                module.register_forward_hook(lambda moe, inputs, output, name=name: self._heard(name, moe))

    def begin(self, first: int, positions: torch.Tensor) -> None:
        """Begin a step. This rank's first sample is `first`, and it has the tokens at `positions` of each sample."""
        self._first, self._positions, self._calls = first, positions.numpy().astype(object), {}

    def _heard(self, name: str, moe: MoE) -> None:
        assert moe.last_choices is not None
        chosen = (moe.last_choices.cpu().numpy().astype(object) + 1) ** 3
        call = self._calls[name] = self._calls.get(name, -1) + 1  # stages see micro-batches in their order
        samples = np.arange(self._micro, dtype=object) + self._first + call * self._micro
        tokens = samples[:, None] * CONTEXT + self._positions[None, :] + 1
        self.sums[name] = (self.sums.get(name, 0) + int((tokens * tokens * chosen.sum(-1)).sum())) % CHECKSUMS


def parts(model: torch.nn.Module) -> list[Part]:
    """Return copies of this rank's part of each parameter."""
    return [
        (piece.name, piece.offset, piece.whole, piece.data.detach().cpu().numpy().copy())
        for name, parameter in model.named_parameters()
        for piece in local_pieces(name, parameter)
    ]


def whole(parts: Iterable[Part]) -> dict[str, Any]:
    """Return whole parameters by name. Parts that several ranks hold must be the same on all of them."""
    found: dict[str, Any] = {}
    for name, offset, shape, block in parts:
        if name not in found:
            found[name] = np.full(shape, np.nan, block.dtype)
        place = found[name][tuple(slice(o, o + n) for o, n in zip(offset, block.shape, strict=True))]
        differ = ~np.isnan(place) & (place != block)
        place[...] = np.where(differ, np.nan, block)  # which passes no comparison
    return found


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of all ranks. A loss that is not the same on all of them becomes NaN."""
    losses = [each[0] if len({*each}) == 1 else math.nan for each in zip(*(o.losses for o in outcomes), strict=True)]
    before = whole(part for outcome in outcomes for part in outcome.before)
    after = whole(part for outcome in outcomes for part in outcome.after)
    choices: dict[str, int] = {}
    for name, number in (item for outcome in outcomes for item in outcome.choices.items()):
        choices[name] = (choices.get(name, 0) + number) % CHECKSUMS
    return Outcome(losses, before, after, choices)
