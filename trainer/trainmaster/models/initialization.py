"""Initial weights, as a pure function of the seed and the parameter's name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainmaster.host.seeds import seed_of

Stds = dict[str, float | None]
"""The standard deviation of the initial values of each parameter, by its name. None: they are ones."""


class Initializable(Protocol):
    def initial_std(self, name: str) -> float | None: ...


def initialize(model: nn.Module, seed: int) -> None:
    """Fill each parameter of `model` from a generator of its own, as `model.initial_std(name)` says."""
    parameters = dict(model.named_parameters())
    for _ in drawn(parameters, stds_of(model), seed, Tensor.detach):
        pass


def stds_of(model: nn.Module) -> Stds:
    """Return the standard deviation of each parameter of a built-in model."""
    return {name: model.initial_std(name) for name, _ in model.named_parameters()}


def drawn(
    parameters: Mapping[str, Tensor], stds: Stds, seed: int, memory: Callable[[Tensor], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, whole initial values) of each of the parameters, the largest ones first.

    `memory(parameter)` returns the tensor to fill, on the host and of the parameter's whole shape. As many threads as
    torch uses fill one parameter each. The numbers of a parameter come from its own generator, one after the other, so
    they do not depend on the number of threads. At most as many parameters as threads are kept here.
    """

    def fill(name: str) -> Tensor:
        return _fill(memory(parameters[name]), stds[name], seed, name)

    threads = torch.get_num_threads()
    names = sorted(parameters, key=lambda name: -parameters[name].numel())
    with ThreadPoolExecutor(threads, "initial-weights") as pool:
        for first in range(0, len(names), threads):
            part = names[first : first + threads]
            yield from zip(part, pool.map(fill, part), strict=True)


def _fill(values: Tensor, std: float | None, seed: int, name: str) -> Tensor:
    if std is None:
        return values.fill_(1.0)
    return values.normal_(0.0, std, generator=generator(seed, name))


class WithoutDraws(TorchFunctionMode):  # type: ignore[misc]
    """A context in which layers are made without random numbers: what they would be filled with is never used.

    Only random numbers are left out. Buffers, and parameters that begin with constants, are as without the context.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _DRAWS:
            values = args[0] if args else kwargs["tensor"]
            if isinstance(values, nn.Parameter):
                return values
        return function(*args, **kwargs)


_DRAWS = (nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, Tensor.uniform_, Tensor.normal_)


def generator(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator seeded by (seed, name). Its numbers are the same on every machine."""
    return torch.Generator().manual_seed(seed_of("initial", seed, name))


def residual_std(width: int, layers: int) -> float:
    """Return the standard deviation of weights whose outputs are added to the residual stream.

    It decreases with the depth (GPT-2), so that the variance of the stream does not grow with it.
    """
    return 1 / math.sqrt(width) / math.sqrt(2 * layers)


def transformer_std(name: str, width: int, hidden: int, layers: int) -> float | None:
    """Return the standard deviation of the initial values of a transformer's parameter, or None if they are ones.

    `hidden` is the hidden width of the MLPs.
    """
    if name.endswith(".bias"):
        return 0.0
    if "norm" in name:
        return None
    if name in ("embedding.weight", "positions.weight"):
        return 1.0
    if name.endswith("attention.out.weight"):
        return residual_std(width, layers)
    if ".down" in name:
        return residual_std(hidden, layers)
    return 1 / math.sqrt(width)
