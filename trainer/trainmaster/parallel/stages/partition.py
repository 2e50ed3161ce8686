"""Which consecutive blocks each stage of a pipeline gets, so that the most expensive stage costs as little as
possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from trainmaster.errors import ConfigError
from trainmaster.parallel.model_plan import named, plan_of


@dataclass(frozen=True)
class Costs:
    """The costs of each block, of the part before the first block, and of the part after the last, in any one unit."""

    stem: float
    blocks: list[float]
    tail: float


def partition(costs: Costs, stages: int) -> list[range]:
    """Return the blocks of each stage, at least one each. The stem counts with the first stage, the tail with the last.

    Raises ConfigError if there are fewer blocks than stages.
    """
    count = len(costs.blocks)
    if count < stages:
        raise ConfigError(f"parallelism.pp: {stages} stages need at least as many blocks, and the model has {count}")
    sums = [0.0]
    for cost in costs.blocks:
        sums.append(sums[-1] + cost)

    def cost_of(first: int, last: int) -> float:
        ends = (costs.stem if first == 0 else 0.0) + (costs.tail if last == count else 0.0)
        return sums[last] - sums[first] + ends

    # best[n]: (cost of the most expensive stage so far, first block of the last stage), for the first n blocks.
    best: list[tuple[float, int] | None] = [None] * (count + 1)
    best[0] = 0.0, 0
    chosen = []
    for stage in range(stages):
        following: list[tuple[float, int] | None] = [None] * (count + 1)
        # Each stage before and after this one has a block.
        for end in range(stage + 1, count - (stages - stage - 1) + 1):
            found = [
                (max(before[0], cost_of(start, end)), start)
                for start in range(stage, end)
                if (before := best[start]) is not None
            ]
            following[end] = min(found)
        best = following
        chosen.append(following)
    end = count
    ranges = []
    for following in reversed(chosen):
        step = following[end]
        assert step is not None
        ranges.append(range(step[1], end))
        end = step[1]
    return ranges[::-1]


def costs(model: nn.Module, balance: str, time: int) -> Costs:
    """Return costs by balance "Parameters" (their number) or "Compute" (operations of the forward pass of one
    sequence)."""
    return by_parameters(model) if balance == "Parameters" else by_operations(model, time)


def by_parameters(model: nn.Module) -> Costs:
    """Return the number of parameters of each part of a model."""
    plan = plan_of(model)
    return Costs(
        sum(_size(model.get_submodule(path)) for path in plan.stem),
        [_size(block) for block in model.get_submodule(plan.blocks)],
        sum(_size(model.get_submodule(path)) for path in plan.tail),
    )


def by_operations(model: nn.Module, time: int) -> Costs:
    """Return the number of operations of each part of a model for a sequence of `time` tokens.

    torch counts them on tensors without memory; blocks of the same kind are counted once.
    """
    plan = plan_of(model)
    x = _stream(model, time)
    shared = model.shared(torch.arange(time, device="meta"), x)
    known: dict[Any, float] = {}
    found = []
    with _evenly_used(model):
        for block in model.get_submodule(plan.blocks):
            kind = (type(block), tuple((name, p.shape) for name, p in block.named_parameters()))
            if kind not in known:
                known[kind] = operations(block, "forward", x, *shared)
            found.append(known[kind])
    tokens = torch.zeros(1, time, dtype=torch.int64, device="meta")
    return Costs(operations(model, "embed", tokens), found, operations(model, "unembed", x))


def stream_and_logits(model: nn.Module, time: int) -> tuple[Tensor, Tensor]:
    """Return the tensor between blocks for one sequence, [1, T, W], and the output, [1, T, V], on the device "meta"."""
    stream = _stream(model, time)
    return stream, _on_meta(model, "unembed", stream)


def _stream(model: nn.Module, time: int) -> Tensor:
    x: Tensor = _on_meta(model, "embed", torch.zeros(1, time, dtype=torch.int64, device="meta"))
    return x


def operations(module: nn.Module, method: str, *inputs: Tensor) -> float:
    """Return the operations of a module's method for inputs on "meta"; a multiply-add counts as two."""
    with FlopCounterMode(display=False) as counter:
        _on_meta(module, method, *inputs)
    return float(counter.get_total_flops())


class _Calls(nn.Module):  # type: ignore[misc]
    """A method as the forward of a module, because parameters can be replaced only in a module's forward."""

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, *inputs: Tensor) -> Any:
        return getattr(self.module, self.method)(*inputs)


@contextmanager
def _evenly_used(model: nn.Module) -> Iterator[None]:
    """Let all experts compute the same number of tokens: tensors without values do not say which experts are chosen."""
    modules = [module for _, module in named(model, plan_of(model).experts)]

    def forward_of(experts: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def forward(x: Tensor, choices: Tensor, weights: Tensor) -> Tensor:
            each = -(-choices.numel() // experts.gate.shape[0])
            experts.compute(x.new_empty(each * experts.gate.shape[0], x.shape[1]), [each] * experts.gate.shape[0])
            return x

        return forward

    for module in modules:
        module.forward = forward_of(module)
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _on_meta(module: nn.Module, method: str, *inputs: Tensor) -> Any:
    caller = _Calls(module, method)
    weights = {name: p.detach().to("meta") for name, p in [*caller.named_parameters(), *caller.named_buffers()]}
    with torch.no_grad():
        return functional_call(caller, weights, inputs)


def _size(module: nn.Module) -> float:
    return float(sum(p.numel() for p in module.parameters()))


def table(ranges: Sequence[range], costs: Costs, unit: str) -> str:
    """Return the stages as a table for people."""
    lines = [f"stage  blocks  {unit}"]
    total = costs.stem + sum(costs.blocks) + costs.tail
    for index, blocks in enumerate(ranges):
        cost = sum(costs.blocks[i] for i in blocks)
        cost += (costs.stem if index == 0 else 0.0) + (costs.tail if index == len(ranges) - 1 else 0.0)
        span = f"{blocks.start}-{blocks.stop - 1}" if len(blocks) > 1 else str(blocks.start)
        lines.append(f"{index:5}  {span:>6}  {cost / total:{len(unit)}.1%}".rstrip())
    return "\n".join(lines)
